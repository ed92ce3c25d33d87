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
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Cache holds the read-only disks built on this node. Many processes share it.
//
//	disks/sha256-<hex>.erofs   content under its digest
//	chains/<key>               symbolic link to the disk of a chain of directories
//	digests/<key>              digest of an image that containerd holds
//	locks/<xx>                 one builder per key
//	tmp/                       what is being built
//
// A VM keeps a disk by a hard link in its own directory, so that neither a crash nor a
// reboot loses count of the users.
type Cache struct {
	dir string
	max int64
}

// OpenCache makes the directories and removes what a crash left in tmp.
func OpenCache(dir string, maxSize int64) (*Cache, error) {
	c := &Cache{dir: dir, max: maxSize}
	for _, sub := range []string{"disks", "chains", "digests", "locks", "tmp"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return nil, fmt.Errorf("open cache: %w", refusedByDisk(err))
		}
	}
	if err := c.cleanScratch(); err != nil {
		return nil, fmt.Errorf("open cache %s: %w", dir, refusedByDisk(err))
	}
	return c, nil
}

// refusedByDisk gives the error of a write below state_dir its class.
func refusedByDisk(err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("make room in state_dir: %w: %w", err, errdefs.ErrResourceExhausted)
	case errors.Is(err, syscall.EROFS), errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("make state_dir writable: %w: %w", err, errdefs.ErrFailedPrecondition)
	}
	return err
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
func (c *Cache) get(ctx context.Context, key, linked string, build func(w io.Writer, scratch string) error) (Disk, error) {
	if key != "" {
		unlock, err := c.lock(ctx, key[:2])
		if err != nil {
			return Disk{}, err
		}
		defer unlock()
		name, err := os.Readlink(c.path("chains", key))
		if err == nil {
			d, err := c.use(filepath.Base(name), linked)
			if !errors.Is(err, fs.ErrNotExist) {
				return d, err
			}
		} else if !errors.Is(err, fs.ErrNotExist) {
			return Disk{}, err
		}
	}
	d, err := c.build(linked, build)
	if err != nil {
		return Disk{}, err
	}
	if key != "" {
		if err := c.remember(key, filepath.Base(d.Path)); err != nil {
			return Disk{}, err
		}
	}
	return d, c.evict()
}

// use links a disk into linked and marks it as just used.
func (c *Cache) use(name, linked string) (Disk, error) {
	file, link := c.path("disks", name), filepath.Join(linked, name)
	err := os.Link(file, link)
	if errors.Is(err, unix.EXDEV) {
		return Disk{}, fmt.Errorf("%w: put cache and VMs on one file system (state_dir): %w", err, errdefs.ErrFailedPrecondition)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return Disk{}, err
	}
	info, err := os.Stat(link)
	if err != nil {
		return Disk{}, err
	}
	// A VMM, which is a user of its own, opens it again; who reaches it else, the directory says.
	if err := os.Chmod(link, 0o444); err != nil {
		return Disk{}, err
	}
	now := time.Now()
	if err := os.Chtimes(link, now, now); err != nil {
		return Disk{}, err
	}
	return Disk{Path: link, Digest: digestOf(name), Size: info.Size(), Type: "erofs"}, nil
}

// Keep takes a disk that this node has not built, and whose digest was verified. The VM that
// has it holds it like any other.
func (c *Cache) Keep(digest, path string) error {
	sum, err := hex.DecodeString(strings.TrimPrefix(digest, "sha256:"))
	if err != nil || len(sum) != sha256.Size {
		return invalid("disk %q: not sha256:<64 hex digits>", digest)
	}
	if err := os.Link(path, c.path("disks", diskName(sum))); err != nil && !errors.Is(err, fs.ErrExist) {
		return refusedByDisk(err)
	}
	return c.evict()
}

func diskName(sum []byte) string { return "sha256-" + hex.EncodeToString(sum) + ".erofs" }

func digestOf(name string) string { return "sha256:" + name[len("sha256-"):len(name)-len(".erofs")] }

// build writes an image in a scratch directory and publishes it under its digest.
func (c *Cache) build(linked string, build func(w io.Writer, scratch string) error) (_ Disk, err error) {
	scratch, release, err := c.scratch()
	if err != nil {
		return Disk{}, err
	}
	defer func() { err = errors.Join(err, release()) }()
	tmp := filepath.Join(scratch, "image")
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o400)
	if err != nil {
		return Disk{}, err
	}
	defer f.Close()
	h := sha256.New()
	if err := build(io.MultiWriter(f, h), scratch); err != nil {
		return Disk{}, err
	}
	if err := f.Sync(); err != nil {
		return Disk{}, err
	}
	return c.publish(tmp, diskName(h.Sum(nil)), linked)
}

// publish may meet the same content, and its eviction, by another process.
func (c *Cache) publish(tmp, name, linked string) (Disk, error) {
	for try := 0; ; try++ {
		if err := os.Link(tmp, c.path("disks", name)); err != nil && !errors.Is(err, fs.ErrExist) {
			return Disk{}, err
		}
		d, err := c.use(name, linked)
		if errors.Is(err, fs.ErrNotExist) && try < 3 {
			continue
		}
		if err != nil {
			return Disk{}, err
		}
		return d, errors.Join(syncPath(c.path("disks")), syncPath(linked))
	}
}

// remember points key at a disk, replacing what it pointed at.
func (c *Cache) remember(key, name string) error {
	link := c.path("chains", key)
	tmp := link + ".new" // the key's lock is held
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(filepath.Join("..", "disks", name), tmp); err != nil {
		return err
	}
	if err := os.Rename(tmp, link); err != nil {
		return err
	}
	return syncPath(c.path("chains"))
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
	for {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		_, err := io.CopyN(h, f, 16<<20)
		if errors.Is(err, io.EOF) {
			return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
		}
		if err != nil {
			return "", err
		}
	}
}
