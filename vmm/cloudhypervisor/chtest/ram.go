package chtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"

	"golang.org/x/sys/unix"
)

// tree is state.json: of the real one's parts, the one that says what RAM is.
type tree struct {
	Snapshots map[string]struct {
		Snapshots map[string]any `json:"snapshots"`
		Data      struct {
			State string `json:"state"`
		} `json:"snapshot_data"`
	} `json:"snapshots"`
	Data any `json:"snapshot_data"`
}

type ramState struct {
	Ranges struct {
		Data []ramRange `json:"data"`
	} `json:"memory_ranges"`
	Mappings []map[string]any `json:"guest_ram_mappings"`
}

type ramRange struct {
	Address uint64 `json:"gpa"`
	Length  uint64 `json:"length"`
}

// state is what state.json holds of RAM.
func state(memory uint64) []byte {
	ram, _ := json.Marshal(map[string]any{
		"memory_ranges": map[string]any{"data": []any{}},
		"guest_ram_mappings": []any{map[string]any{
			"slot": 0, "gpa": 0, "size": memory, "zone_id": "ram", "virtio_mem": false, "file_offset": 0,
		}},
	})
	out, _ := json.Marshal(map[string]any{"snapshots": map[string]any{
		"memory-manager": map[string]any{"snapshots": map[string]any{},
			"snapshot_data": map[string]any{"state": string(ram)}},
	}, "snapshot_data": nil})
	return out
}

func ramOf(saved []byte) (r ramState, err error) {
	var t tree
	if err := json.Unmarshal(saved, &t); err != nil {
		return r, err
	}
	return r, json.Unmarshal([]byte(t.Snapshots["memory-manager"].Data.State), &r)
}

// sameState reports whether that is the state of a VM with so much RAM, whatever RAM it wants to be read.
func sameState(saved []byte, memory uint64) bool {
	got, err := ramOf(saved)
	want, wantErr := ramOf(state(memory))
	got.Ranges = want.Ranges
	return errors.Join(err, wantErr) == nil && reflect.DeepEqual(got, want)
}

// readRAM maps RAM, reads memory-ranges if the state has ranges, and reads and writes RAM then, in this order. A file
// of ranges that cannot be searched for data is refused.
func (s *Server) readRAM(saved []byte, dir, ram string) error {
	file, err := os.OpenFile(ram, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || info.Size() < int64(os.Getpagesize()) {
		return err // a test's that has no RAM
	}
	mapped, err := unix.Mmap(int(file.Fd()), 0, int(info.Size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	// It stays mapped.
	r, err := ramOf(saved)
	if err != nil {
		return err
	}
	if len(r.Ranges.Data) > 0 && s.Hasty == "" {
		f, err := os.Open(filepath.Join(dir, "memory-ranges"))
		if err != nil {
			return err
		}
		defer f.Close()
		if _, err := f.Seek(0, unix.SEEK_DATA); !errors.Is(err, unix.ENXIO) {
			return fmt.Errorf("memory-ranges has data, or is no file: %w", err)
		}
	}
	mapped[0]++
	return nil
}
