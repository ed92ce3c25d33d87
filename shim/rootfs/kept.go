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

// Kept is the directory of what a VM of a container writes, and for which its snapshot has no place: native and
// blockfile have none, and a VM that woke has its disk elsewhere. The next task of the container finds its writes
// there. The zero value keeps nothing.
type Kept struct {
	Dir string // of one container
}

// Names in the directory, and of the note in that of a VM.
const (
	KeptDisk = "rw.ext4"
	keptRoot = "root.json"
	keptSet  = "disks.json" // of a container without a root file system
)

// root is the root file system that a disk belongs to. Another container of the same name has another one. A container
// that has none is told by what its creator calls it.
type root struct {
	Path  string `json:"path"`
	Inode uint64 `json:"inode"`
	// Birth is when the inode was made, since its number is used again; empty: not known.
	Birth string `json:"birth,omitempty"`
	// Parent tells the directory of all snapshots from another at its path; empty: not known, as in older notes.
	Parent string `json:"parent,omitempty"`
	// Container is spec.AnnotationContainer of one without a path; empty: not known, as in older notes.
	Container string `json:"container,omitempty"`
}

// none reports whether the container has no root file system.
func (r root) none() bool { return r.Path == "" }

// same reports whether a note is about this root file system, or this container.
func (r root) same(other root) bool {
	return r.Path == other.Path && r.Inode == other.Inode &&
		(r.Birth == "" || other.Birth == "" || r.Birth == other.Birth) &&
		(r.Container == "" || r.Container == other.Container)
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
	var st unix.Statx_t
	err = unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_INO|unix.STATX_BTIME, &st)
	if errors.Is(err, fs.ErrNotExist) {
		return root{}, false, nil
	}
	if err != nil {
		return root{}, false, fmt.Errorf("look at the root file system %s: %w", path, err)
	}
	r := root{Path: path, Inode: st.Ino, Birth: birth(&st)}
	if parent, err := os.Open(filepath.Dir(path)); err == nil {
		r.Parent = directoryID(parent)
		_ = parent.Close()
	}
	return r, true, nil
}

// find is the file that is kept for a root file system; empty: there is none. What cannot be read may be it: an error.
func (k Kept) find(r root, name string) (string, error) {
	if k.Dir == "" {
		return "", nil
	}
	if r != (root{}) { // else the one that is aside may be another's
		if err := k.recover(r); err != nil {
			return "", err
		}
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
	if !kept.same(r) {
		return "", nil
	}
	path := filepath.Join(k.Dir, name)
	_, err = os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return path, err
}

// place is where the file of a root file system is, or will be: those of another one go.
func (k Kept) place(r root, name string) (string, error) {
	if path, err := k.find(r, name); path != "" || err != nil {
		return path, err
	}
	if err := k.begin(r); err != nil {
		return "", fmt.Errorf("keep writable disk: %w", err)
	}
	return filepath.Join(k.Dir, name), nil
}

// begin writes the note. It is durable, and so are the directories up to the one of all containers.
func (k Kept) begin(r root) error {
	if err := k.spare(r); err != nil {
		return err
	}
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
	err = durable.WriteFile(filepath.Join(k.Dir, keptRoot), data, 0o600)
	for dir := filepath.Dir(k.Dir); err == nil && dir != filepath.Dir(filepath.Dir(filepath.Dir(k.Dir))); {
		err, dir = durable.SyncDir(dir), filepath.Dir(dir)
	}
	return err
}

// Remove what is kept.
func (k Kept) Remove() error {
	if k.Dir == "" {
		return nil
	}
	return os.RemoveAll(k.Dir)
}

// Note writes into the directory of a VM that is restored which root file system containerd has for it, for Link.
// A container that was made for the restore has none: container tells it from another of its name.
func Note(mounts []*types.Mount, dir, container string) error {
	r := root{Container: container}
	if len(mounts) > 0 {
		p, err := readPlan(mounts)
		if err != nil {
			return nil //nolint:nilerr // no task of ours boots from such mounts
		}
		known := false
		if r, known, err = p.rootOf(); !known || err != nil {
			return err
		}
	}
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(dir, keptRoot), data, 0o600)
}
