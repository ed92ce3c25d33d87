package rootfs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"godwit.dev/godwit/internal/durable"
)

// Cache holds the read-only disks built on this node. Many processes share it.
//
//	verified/sha256-<hex>.erofs  content under its digest, which this package has written, hashed and synced
//	disks/sha256-<hex>.erofs     what builds before this one left: used once its content was compared
//	disks/base-<key>.raw         see Base
//	chains/<key>                 symbolic link to the disk of a chain of directories
//	digests/<key>                digest of an image that containerd holds
//	locks/<xx>                   one builder per key
//	tmp/                         what is being built
//
// A VM keeps a disk by a hard link in its own directory. So neither a crash nor a reboot
// loses count of the users.
type Cache struct {
	dir string
	max int64
}

// OpenCache makes the directories and removes what a crash left in tmp.
func OpenCache(dir string, maxSize int64) (*Cache, error) {
	c := &Cache{dir: dir, max: maxSize}
	for _, sub := range []string{verified, unverified, "chains", "digests", "locks", "tmp"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return nil, fmt.Errorf("open cache: %w", refusedByDisk(err))
		}
	}
	if err := c.cleanScratch(); err != nil {
		return nil, fmt.Errorf("open cache %s: %w", dir, refusedByDisk(err))
	}
	return c, nil
}

// Directories of disks.
const (
	verified   = "verified"
	unverified = "disks"
)

// refusedByDisk gives the error of a write below state_dir its class.
func refusedByDisk(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return durable.ReadOnly(err)
	}
	return durable.DiskError(err)
}

func (c *Cache) path(elem ...string) string {
	return filepath.Join(append([]string{c.dir}, elem...)...)
}

func hashKey(kind string, parts ...string) string {
	h := sha256.New()
	for _, p := range append([]string{kind, "v1"}, parts...) {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// get returns the disk of key, built by build if it is not there. An empty key is
// built every time. The disk is linked into linked before anybody can evict it.
func (c *Cache) get(ctx context.Context, key, linked string, build func(w io.Writer, scratch string) error) (Disk,
	error) {
	if key != "" {
		unlock, err := c.lock(ctx, key[:2])
		if err != nil {
			return Disk{}, err
		}
		defer unlock()
		name, err := os.Readlink(c.path("chains", key))
		if err == nil {
			name = filepath.Base(name)
			d, err := c.use(ctx, name, filepath.Join(linked, name))
			if !errors.Is(err, fs.ErrNotExist) {
				return d, err
			}
		} else if !errors.Is(err, fs.ErrNotExist) {
			return Disk{}, err
		}
	}
	d, err := c.build("", "", func(name string) string { return filepath.Join(linked, name) }, build)
	if err != nil {
		return Disk{}, err
	}
	if key != "" {
		if err := c.setDisk(key, filepath.Base(d.Path)); err != nil {
			return Disk{}, err
		}
	}
	return d, c.evict()
}

// setDisk points key at a disk, replacing what it pointed at.
func (c *Cache) setDisk(key, name string) error {
	link := c.path("chains", key)
	tmp := link + ".new" // the key's lock is held
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(filepath.Join("..", verified, name), tmp); err != nil {
		return err
	}
	if err := os.Rename(tmp, link); err != nil {
		return err
	}
	return durable.SyncDir(c.path("chains"))
}

// file describes an image that containerd holds. Its digest is computed once; inode
// and times tell when it is another file.
func (c *Cache) file(ctx context.Context, img image) (Disk, error) {
	id, err := identity(img.path)
	if err != nil {
		return Disk{}, err
	}
	info, err := os.Stat(img.path)
	if err != nil {
		return Disk{}, err
	}
	if !info.Mode().IsRegular() || info.Size() == 0 || info.Size()%512 != 0 {
		return Disk{}, invalid("%s image %s of %d bytes is not a disk", img.fsType, img.path, info.Size())
	}
	key := hashKey("file", id)
	unlock, err := c.lock(ctx, key[:2])
	if err != nil {
		return Disk{}, err
	}
	defer unlock()
	d := Disk{Path: img.path, Size: info.Size(), Type: img.fsType}
	known, err := os.Readlink(c.path("digests", key))
	if err == nil {
		d.Digest = known
		return d, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return Disk{}, err
	}
	if d.Digest, err = digestFile(ctx, img.path); err != nil {
		return Disk{}, err
	}
	return d, os.Symlink(d.Digest, c.path("digests", key)) // a link is written whole
}

func digestFile(ctx context.Context, path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, interruptible{ctx, f}); err != nil {
		return "", err
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}

// interruptible ends with its context.
type interruptible struct {
	ctx  context.Context
	from io.Reader
}

func (r interruptible) Read(buf []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.from.Read(buf)
}
