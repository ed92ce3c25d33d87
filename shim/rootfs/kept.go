package rootfs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/api/types"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/internal/durable"
)

// Kept is the directory of a container's writable disk for which its snapshot has no place: native and blockfile have
// none, and a VM that woke has its disk elsewhere. The next task of the container finds its writes there. The zero
// value keeps nothing.
type Kept struct {
	Dir string // of one container
}

// Names in the directory, and of the note in that of a VM.
const (
	keptDisk = "rw.ext4"
	keptRoot = "root.json"
)

// root is the root file system that a disk belongs to. Another container of the same name has another one.
type root struct {
	Path  string `json:"path"`
	Inode uint64 `json:"inode"`
}

// rootOf names what containerd has made for one container; false: the mounts are a view, or are gone.
func (p *plan) rootOf() (_ root, known bool, err error) {
	path := ""
	switch {
	case p.writable != "":
		path = filepath.Dir(p.writable)
	case p.own && len(p.dirs) == 1:
		path = p.dirs[0]
	case p.own && len(p.files) == 1:
		path = p.files[0].path
	default:
		return root{}, false, nil
	}
	var st unix.Stat_t
	err = unix.Lstat(path, &st)
	if errors.Is(err, fs.ErrNotExist) {
		return root{}, false, nil
	}
	if err != nil {
		return root{}, false, fmt.Errorf("look at the root file system %s: %w", path, err)
	}
	return root{path, st.Ino}, true, nil
}

// find is the disk that is kept for a root file system; empty: there is none. What cannot be read may be it: an error.
func (k Kept) find(r root) (string, error) {
	if k.Dir == "" {
		return "", nil
	}
	data, err := os.ReadFile(filepath.Join(k.Dir, keptRoot))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	var kept root
	if err == nil {
		err = json.Unmarshal(data, &kept)
	}
	if err != nil {
		return "", fmt.Errorf("look for the container's writable disk in %s, which stays. If it is not needed, remove that "+
			"directory: %w", k.Dir, err)
	}
	if kept != r {
		return "", nil
	}
	path := filepath.Join(k.Dir, keptDisk)
	_, err = os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return path, err
}

// place is where the disk of a root file system is, or will be: another one's goes.
func (k Kept) place(r root) (string, error) {
	if path, err := k.find(r); path != "" || err != nil {
		return path, err
	}
	if err := k.begin(r); err != nil {
		return "", fmt.Errorf("keep writable disk: %w", err)
	}
	return filepath.Join(k.Dir, keptDisk), nil
}

func (k Kept) begin(r root) error {
	if err := k.Remove(); err != nil {
		return err
	}
	if err := os.MkdirAll(k.Dir, 0o700); err != nil {
		return err
	}
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(k.Dir, keptRoot), data, 0o600)
}

// Remove what is kept.
func (k Kept) Remove() error {
	if k.Dir == "" {
		return nil
	}
	return os.RemoveAll(k.Dir)
}

// Note writes into the directory of a VM that is restored which root file system containerd has for it, for Link.
// Its snapshot is marked as by Prepare.
func Note(mounts []*types.Mount, dir string) error {
	if len(mounts) == 0 {
		return nil // a container made for a restore has no snapshot
	}
	p, err := readPlan(mounts)
	if err != nil {
		return nil //nolint:nilerr // no task of ours boots from such mounts
	}
	r, known, err := p.rootOf()
	if !known || err != nil {
		return err
	}
	if err := p.mark(); err != nil {
		return err
	}
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(dir, keptRoot), data, 0o600)
}

// Link keeps the writable disk of a VM that woke and runs, by a second name of the file. dir is the one of Note;
// without a note nothing is kept.
func (k Kept) Link(dir, disk string) error {
	data, err := os.ReadFile(filepath.Join(dir, keptRoot))
	if errors.Is(err, fs.ErrNotExist) || k.Dir == "" {
		return nil
	}
	var r root
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err == nil {
		err = k.begin(r)
	}
	if err == nil {
		err = os.Link(disk, filepath.Join(k.Dir, keptDisk))
	}
	if err == nil {
		err = durable.SyncDir(k.Dir)
	}
	if err != nil {
		return fmt.Errorf("keep writable disk: %w", err)
	}
	return nil
}

// SweepKept removes the disks below top, one directory a namespace, whose root file systems containerd has removed.
// What cannot be looked at stays.
func SweepKept(top string) {
	namespaces, err := os.ReadDir(top)
	if err != nil {
		return // there is none, or the next sweep sees them
	}
	for _, ns := range namespaces {
		containers, err := os.ReadDir(filepath.Join(top, ns.Name()))
		if err != nil {
			continue
		}
		for _, c := range containers {
			Kept{filepath.Join(top, ns.Name(), c.Name())}.sweep()
		}
	}
}

func (k Kept) sweep() {
	var r root
	data, err := os.ReadFile(filepath.Join(k.Dir, keptRoot))
	if err != nil || json.Unmarshal(data, &r) != nil {
		return
	}
	if _, err := os.Lstat(filepath.Dir(r.Path)); err != nil {
		return // the file system of containerd is not mounted, perhaps
	}
	if _, err := os.Lstat(r.Path); errors.Is(err, fs.ErrNotExist) {
		_ = k.Remove()
	}
}
