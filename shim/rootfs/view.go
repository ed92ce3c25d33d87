package rootfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/containerd/containerd/api/types"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/internal/durable"
)

// Tree is a root file system as Show presents it.
type Tree struct {
	Dir string // where it can be read
	// Below are directories of the host that it is made of, topmost first: what lies there
	// can be cloned, where an overlay cannot.
	Below []string
	// Key names the content on this node; empty where it may change.
	Key string
}

// Show presents the root file system of these mounts to use, read-only, in a mount namespace
// that only its thread sees. use stays on its goroutine.
func (c *Cache) Show(ctx context.Context, mounts []*types.Mount, use func(Tree) error) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("read root file system: %w", err)
		}
	}()
	p, err := readPlan(mounts)
	if err != nil {
		return err
	}
	scratch, release, err := c.scratch()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	switch {
	case len(p.files) > 0:
		key, err := fileKey(p.files)
		if err != nil {
			return err
		}
		return inPrivateNamespace(func() error {
			return useImages(ctx, p.files, scratch, func(dir string) error { return use(Tree{Dir: dir, Key: key}) })
		})
	case p.unique:
		return use(Tree{Dir: p.dirs[0], Below: p.dirs})
	}
	key := ""
	if !p.bound {
		if key, err = chainKey(p.dirs); err != nil {
			return err
		}
	}
	return merged(ctx, p.dirs, scratch, func(dir string) error { return use(Tree{Dir: dir, Below: p.dirs, Key: key}) })
}

func fileKey(files []image) (string, error) {
	var parts []string
	for _, f := range files {
		id, err := identity(f.path)
		if err != nil {
			return "", err
		}
		parts = append(parts, id)
	}
	return hashKey("files", parts...), nil
}

// Names of a root file system that is a VM disk: nothing else lies at its top.
var diskNames = []string{"disk", "boot"}

// CarriesDisk reports whether the image below these mounts is a VM disk by its looks: it
// holds nothing but /disk, and perhaps what boots it. Mounts that make no root file
// system are left to Prepare.
func (c *Cache) CarriesDisk(ctx context.Context, mounts []*types.Mount) (bool, error) {
	p, err := readPlan(mounts)
	if err != nil {
		return false, nil
	}
	disk := false
	look := func(dir string) (all bool, err error) {
		entries, err := os.ReadDir(dir)
		for _, e := range entries {
			if e.Name() != "lost+found" && !slices.Contains(diskNames, e.Name()) {
				return false, err
			}
			disk = disk || e.Name() == "disk" && e.IsDir()
		}
		return true, err
	}
	// A root file system is filled from the bottom: one look is enough for most.
	for _, dir := range slices.Backward(p.dirs) {
		if all, err := look(dir); err != nil || !all {
			return false, err
		}
	}
	for _, img := range slices.Backward(p.files) {
		all, err := c.inspect(ctx, img, look)
		if err != nil || !all {
			return false, err
		}
	}
	return disk, nil
}

func (c *Cache) inspect(ctx context.Context, img image, look func(string) (bool, error)) (all bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	scratch, release, err := c.scratch()
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, release()) }()
	return all, inPrivateNamespace(func() (err error) {
		if err := mountImage(img, scratch); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, unix.Unmount(scratch, 0)) }()
		all, err = look(scratch)
		return err
	})
}

// VM disks lie where the writable disk of a container lies.
const (
	DiskName  = "godwit-disk.raw"
	NVRAMName = "godwit-nvram.fd"
)

// WritableDir answers the directory for the files that a VM disk's VM writes: that of the snapshot, so that containerd
// removes them with it, else the one where they are kept for the next task, else own.
func WritableDir(mounts []*types.Mount, own string, kept Kept) (string, error) {
	p, err := readPlan(mounts)
	if err != nil {
		return "", err
	}
	r, known, err := p.rootOf()
	if err != nil {
		return "", err
	}
	if !known || kept.Dir == "" {
		if p.writable == "" {
			return own, nil
		}
		return filepath.Dir(p.writable), nil
	}
	if p.writable == "" {
		path, err := kept.place(r, DiskName)
		return filepath.Dir(path), err
	}
	dir := filepath.Dir(p.writable)
	if _, err := os.Lstat(filepath.Join(dir, DiskName)); !errors.Is(err, fs.ErrNotExist) {
		return dir, err
	}
	path, err := kept.find(r, DiskName)
	if path == "" || err != nil {
		return dir, err
	}
	return kept.Dir, nil
}

// Base is a raw disk that is made once on this node, under key, by build. Its file is
// open, and stays so whatever is evicted meanwhile.
func (c *Cache) Base(ctx context.Context, key string, build func(f *os.File) error) (*os.File, error) {
	if key == "" {
		return nil, invalid("a base without a key")
	}
	unlock, err := c.lock(ctx, key[:2])
	if err != nil {
		return nil, err
	}
	defer unlock()
	name := c.path(unverified, "base-"+key+".raw")
	if f, err := os.Open(name); err == nil {
		now := time.Now()
		// It was just used. Evicted meanwhile, it is open all the same.
		if err := os.Chtimes(name, now, now); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, errors.Join(err, f.Close())
		}
		return f, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	scratch, release, err := c.scratch()
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(scratch, "base"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o400)
	if err == nil {
		if err = build(f); err == nil {
			err = f.Sync()
		}
		if err == nil {
			err = os.Rename(f.Name(), name)
		}
		if err == nil {
			err = errors.Join(durable.SyncDir(c.path(unverified)), c.evict())
		}
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}
	if err = errors.Join(err, release()); err != nil {
		return nil, err
	}
	return f, nil
}

// InnerKey names a file of a Tree.
func (t Tree) InnerKey(path string, size int64) string {
	if t.Key == "" {
		return ""
	}
	return hashKey("inner", t.Key, path, strconv.FormatInt(size, 10))
}
