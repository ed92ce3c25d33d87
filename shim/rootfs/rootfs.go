// Package rootfs turns the mounts that containerd hands to a task into the block files
// of a VM: read-only ones that the node's VMs share, and one writable file of its own.
// The guest joins them by overlayfs. Nothing stays mounted on the host.
package rootfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/containerd/containerd/api/types"
	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/spec"
)

// MaxDisks is how many read-only disks a VM gets at most; what is below is merged.
const MaxDisks = 20

// Disk is one read-only block file.
type Disk struct {
	Path   string
	Digest string // "sha256:<hex>" of the file
	Size   int64  // bytes, a multiple of 512
	Type   string // erofs, or ext4
}

// Layers are the disks of one root file system.
type Layers struct {
	Disks        []Disk // topmost first
	Writable     string // path of an ext4 file with room for /upper and /work
	WritableSize int64
}

// Paths say where Prepare may write.
type Paths struct {
	Cache *Cache
	// Dir is the VM's own durable directory, on the file system of the cache. The links
	// in it keep the disks of the cache; removing it frees them.
	Dir string
	// Kept is where the writable disk is that the snapshot has no place for.
	Kept Kept
	// WritableSize of a writable disk that the mounts do not size themselves.
	WritableSize int64
	// Room is added to the size, wherever that came from, of a writable disk that is made here.
	Room int64
	// Program is looked for, if its name is not empty. NotFound if it is proved to be missing: a writable
	// disk that was written to may have it.
	Program Program
}

// writableName is the file next to an overlay's upperdir: containerd removes it with the
// snapshot, and a second task of the same container finds its writes again.
const writableName = "godwit-rw.ext4"

// Prepare makes the block files for the mounts of a Create. Whatever it made for this
// VM alone is removed again on failure; what it built stays in the cache.
func Prepare(ctx context.Context, mounts []*types.Mount, dst Paths) (_ Layers, err error) {
	p, err := readPlan(mounts)
	if err != nil {
		return Layers{}, fmt.Errorf("prepare root file system: %w", err)
	}
	linked := filepath.Join(dst.Dir, "layers")
	if err := os.MkdirAll(linked, 0o700); err != nil {
		return Layers{}, fmt.Errorf("prepare root file system: %w", err)
	}
	if err := p.placeWritable(dst); err != nil {
		return Layers{}, fmt.Errorf("prepare root file system: %w", err)
	}
	_, statErr := os.Lstat(p.writable)
	defer func() {
		if err == nil {
			return
		}
		undo := os.RemoveAll(linked)
		if errors.Is(statErr, fs.ErrNotExist) {
			if e := os.Remove(p.writable); e != nil && !errors.Is(e, fs.ErrNotExist) {
				undo = errors.Join(undo, e)
			}
		}
		err = errors.Join(fmt.Errorf("prepare root file system: %w", err), undo)
	}()
	if dst.Program.Name != "" && p.fresh(statErr) && dst.Cache.lacks(ctx, mounts, dst.Program) {
		return Layers{}, dst.Program.missing()
	}
	layers, err := p.build(ctx, dst.Cache, linked)
	if err != nil {
		return Layers{}, err
	}
	size := p.writableSize
	if size == 0 {
		size = dst.WritableSize
	}
	if layers.WritableSize, err = makeWritable(p.writable, withRoom(size, dst.Room)); err != nil {
		return Layers{}, err
	}
	layers.Writable = p.writable
	return layers, nil
}

// placeWritable decides where the writable disk is: next to upperdir, where a task before this one has left it, or in
// the VM's own directory.
func (p *plan) placeWritable(dst Paths) (err error) {
	r, known, err := p.rootOf()
	switch {
	case err != nil:
	case p.writable == "" && known && dst.Kept.Dir != "":
		p.writable, err = dst.Kept.place(r, KeptDisk)
	case p.writable == "":
		p.writable = filepath.Join(dst.Dir, writableName)
	case known:
		info, serr := os.Lstat(p.writable)
		if errors.Is(serr, fs.ErrNotExist) || serr == nil && info.Size() == 0 {
			var kept string
			if kept, err = dst.Kept.find(r, KeptDisk); kept != "" {
				p.writable = kept
			}
		}
	}
	return err
}

// withRoom adds room to the size of a disk; what has some ends with a whole group of blocks.
func withRoom(size, room int64) int64 {
	const group = 128 << 20
	if room == 0 {
		return size
	}
	return (size + room + group - 1) / group * group
}

// Writable returns where Prepare puts, or finds, the writable disk of these mounts;
// empty means in the VM's own directory. A restore that leaves the disk elsewhere has
// to replace or remove this one: the next task of the container would boot from it.
func Writable(mounts []*types.Mount) (string, error) {
	if len(mounts) == 0 {
		return "", nil // a container made for a restore has no snapshot
	}
	p, err := readPlan(mounts)
	if err != nil {
		return "", fmt.Errorf("find writable disk: %w", err)
	}
	return p.writable, nil
}

// Describe names the disks as every node and the guest know them: "layer0" is the
// topmost read-only one, "rw" the writable one, each its own serial number. Slots are
// the caller's. files holds the paths by disk.
func (l Layers) Describe() (disks []spec.Disk, layers []string, writable string, files map[string]string) {
	files = make(map[string]string)
	for i, d := range l.Disks {
		id := "layer" + strconv.Itoa(i)
		disks = append(disks, spec.Disk{ID: id, Serial: id, ReadOnly: true, Type: d.Type, Size: d.Size, Digest: d.Digest})
		layers, files[id] = append(layers, id), d.Path
	}
	const rw = "rw"
	disks = append(disks, spec.Disk{ID: rw, Serial: rw, Type: "ext4", Size: l.WritableSize})
	files[rw] = l.Writable
	return disks, layers, rw, files
}

// Release gives the cached disks of a VM free for eviction. It may be called twice.
func Release(dir string) error {
	if err := os.RemoveAll(filepath.Join(dir, "layers")); err != nil {
		return fmt.Errorf("release disks: %w", err)
	}
	return nil
}

// invalid says that mounts do not make a root file system.
func invalid(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), errdefs.ErrInvalidArgument)
}

// fresh reports whether nothing was ever written above the images and directories. looked is how the look
// at the writable disk has ended.
func (p *plan) fresh(looked error) bool {
	if !errors.Is(looked, fs.ErrNotExist) {
		return false
	}
	if p.upper == "" {
		return true
	}
	empty, err := checkUpper(p.upper)
	return empty && err == nil
}
