package rootfs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/internal/durable"
)

// Set are the disks of a VM, with the path of each.
type Set struct {
	Disks    []spec.Disk       `json:"disks"`
	Layers   []string          `json:"layers,omitempty"`   // of a container: ids, topmost first
	Writable string            `json:"writable,omitempty"` // of a container: an id
	Paths    map[string]string `json:"-"`                  // by id
}

// names are those of the files to keep, by id. A root file system of containerd has the rest.
func (s *Set) names(whole bool) map[string]string {
	names := map[string]string{}
	for _, d := range s.Disks {
		switch {
		case d.ID == s.Writable && d.ID != "":
			names[d.ID] = KeptDisk
		case d.Type == spec.TypeRaw:
			names[d.ID] = DiskName
		case d.Type == spec.TypeNVRAM:
			names[d.ID] = NVRAMName
		case whole:
			names[d.ID] = d.ID + ".img"
		}
	}
	return names
}

// Link keeps what a VM that woke writes, by a second name of each file. In a container without a root file system it
// keeps all disks. dir is the one of Note; without a note nothing is kept. It may be repeated. After an error the files
// are to stay where they are.
func (k Kept) Link(dir string, set *Set) error {
	data, err := os.ReadFile(filepath.Join(dir, keptRoot))
	if errors.Is(err, fs.ErrNotExist) || k.Dir == "" {
		return nil
	}
	var r root
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	names := set.names(r.none())
	var done bool
	if err == nil {
		if done = freed(names, set.Paths); !done {
			done, err = k.has(r, names, set.Paths)
		}
	}
	if done && err == nil {
		return nil
	}
	if err == nil {
		err = k.begin(r)
	}
	if err == nil && r.none() {
		if data, err = json.Marshal(set); err == nil {
			err = durable.WriteFile(filepath.Join(k.Dir, keptSet), data, 0o600)
		}
	}
	for id, name := range names {
		if err == nil {
			err = os.Link(set.Paths[id], filepath.Join(k.Dir, name))
		}
	}
	if err == nil {
		err = durable.SyncDir(k.Dir)
	}
	if err != nil {
		return fmt.Errorf("keep the writable disk in %s: %w", k.Dir, err)
	}
	return nil
}

// freed reports whether one of the files is gone. They are freed once all are kept, and not before.
func freed(names, paths map[string]string) bool {
	for id := range names {
		if _, err := os.Lstat(paths[id]); errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	return false
}

// has reports whether exactly these files are kept for a root file system. What cannot be read may be them.
func (k Kept) has(r root, names, paths map[string]string) (bool, error) {
	if r.none() {
		if path, err := k.find(r, keptSet); path == "" || err != nil {
			return false, err
		}
	}
	for id, name := range names {
		kept, err := k.find(r, name)
		if err != nil || kept == "" {
			return false, err
		}
		a, err := os.Stat(kept)
		if err != nil {
			return false, err
		}
		b, err := os.Stat(paths[id])
		if err != nil {
			return false, err
		}
		if !os.SameFile(a, b) {
			return false, nil
		}
	}
	return true, nil
}

// Whole are the disks that a VM has left in a container without a root file system; nil: none did. Those of another
// container of that name are none. What is there in part is an error.
func (k Kept) Whole(container string) (*Set, error) {
	r := root{Container: container}
	path, err := k.find(r, keptSet)
	if path == "" || err != nil {
		return nil, err
	}
	set := new(Set)
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, set)
	}
	if err != nil {
		return nil, fmt.Errorf("read which disks the VM has: %w", err)
	}
	set.Paths = map[string]string{}
	for id, name := range set.names(true) {
		path, err := k.find(r, name)
		if err == nil && path == "" {
			err = fs.ErrNotExist
		}
		if err != nil {
			return nil, fmt.Errorf("disk %s of the VM in %s: %w", id, k.Dir, err)
		}
		set.Paths[id] = path
	}
	return set, nil
}
