package cloudhypervisor

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
)

// snapshotTree is state.json: components by name, each with its own state as text.
type snapshotTree struct {
	Snapshots map[string]snapshotTree `json:"snapshots"`
	Data      *struct {
		State string `json:"state"`
	} `json:"snapshot_data"`
}

// ramState is what the memory manager says of RAM.
type ramState struct {
	Ranges struct {
		Data []struct{} `json:"data"`
	} `json:"memory_ranges"`
	Mappings []ramMapping `json:"guest_ram_mappings"`
}

type ramMapping struct {
	Size       uint64 `json:"size"`
	Zone       string `json:"zone_id"`
	FileOffset uint64 `json:"file_offset"`
	VirtioMem  bool   `json:"virtio_mem"`
}

// checkedKeys are those by which checkState judges. The VMM knows them by their exact names, and package json does not.
var checkedKeys = []string{"snapshots", "snapshot_data", "state", "memory_ranges", "data", "guest_ram_mappings", "size",
	"zone_id", "file_offset", "virtio_mem"}

// exactKeys refuses a value with a key that comes twice in its object, or that differs from one of checkedKeys in its
// case alone: the VMM would read another than the one that is checked.
func exactKeys(d *json.Decoder) error {
	token, err := d.Token()
	if err != nil {
		return fmt.Errorf("%w: %w", errdefs.ErrInvalidArgument, err)
	}
	open, nested := token.(json.Delim)
	if !nested {
		return nil
	}
	seen := map[string]bool{}
	for d.More() {
		if open == '{' {
			token, err := d.Token()
			key, _ := token.(string)
			other := func(name string) bool { return name != key && strings.EqualFold(name, key) }
			if err != nil || seen[key] || slices.ContainsFunc(checkedKeys, other) {
				return fmt.Errorf("key %q is not unique: %w", key, errors.Join(errdefs.ErrInvalidArgument, err))
			}
			seen[key] = true
		}
		if err := exactKeys(d); err != nil {
			return err
		}
	}
	_, err = d.Token()
	return err
}

// checkState refuses state that lies about the RAM it goes with: the VMM maps what it is
// told to.
func checkState(state []byte, memory uint64) error {
	var tree snapshotTree
	if err := json.Unmarshal(state, &tree); err != nil {
		return fmt.Errorf("%s: %w: %w", stateFile, errdefs.ErrInvalidArgument, err)
	}
	if err := exactKeys(json.NewDecoder(bytes.NewReader(state))); err != nil {
		return fmt.Errorf("%s: %w", stateFile, err)
	}
	manager := tree.Snapshots["memory-manager"]
	if manager.Data == nil {
		return fmt.Errorf("%s says nothing of RAM: %w", stateFile, errdefs.ErrInvalidArgument)
	}
	var ram ramState
	if err := json.Unmarshal([]byte(manager.Data.State), &ram); err != nil {
		return fmt.Errorf("%s: RAM: %w: %w", stateFile, errdefs.ErrInvalidArgument, err)
	}
	if err := exactKeys(json.NewDecoder(strings.NewReader(manager.Data.State))); err != nil {
		return fmt.Errorf("%s: RAM: %w", stateFile, err)
	}
	if len(ram.Ranges.Data) > 0 {
		return fmt.Errorf("%s wants RAM from a file of its own: %w", stateFile, errdefs.ErrInvalidArgument)
	}
	slices.SortFunc(ram.Mappings, func(a, b ramMapping) int { return cmp.Compare(a.FileOffset, b.FileOffset) })
	var next uint64
	for _, m := range ram.Mappings {
		if m.Zone != ramZone || m.VirtioMem || m.FileOffset != next || m.Size > memory-next {
			return fmt.Errorf("%s maps %d bytes of zone %s at %d, not those of this VM: %w",
				stateFile, m.Size, m.Zone, m.FileOffset, errdefs.ErrInvalidArgument)
		}
		next += m.Size
	}
	if next != memory {
		return fmt.Errorf("%s is of a VM with %d bytes of RAM, this one has %d: %w", stateFile, next, memory,
			errdefs.ErrFailedPrecondition)
	}
	return nil
}
