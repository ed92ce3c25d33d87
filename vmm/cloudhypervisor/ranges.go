package cloudhypervisor

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

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

// checkState refuses state that lies about the RAM it goes with: the VMM maps what it is
// told to.
func checkState(state []byte, memory uint64) error {
	var tree snapshotTree
	if err := json.Unmarshal(state, &tree); err != nil {
		return fmt.Errorf("%s: %w: %w", stateFile, errdefs.ErrInvalidArgument, err)
	}
	manager := tree.Snapshots["memory-manager"]
	if manager.Data == nil {
		return fmt.Errorf("%s says nothing of RAM: %w", stateFile, errdefs.ErrInvalidArgument)
	}
	var ram ramState
	if err := json.Unmarshal([]byte(manager.Data.State), &ram); err != nil {
		return fmt.Errorf("%s: RAM: %w: %w", stateFile, errdefs.ErrInvalidArgument, err)
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
