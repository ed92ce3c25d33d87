package rootfs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/internal/durable"
)

func diskName(sum []byte) string { return "sha256-" + hex.EncodeToString(sum) + ".erofs" }

func digestOf(name string) string { return "sha256:" + name[len("sha256-"):len(name)-len(".erofs")] }

// nameOf is diskName of "sha256:<hex>".
func nameOf(digest string) (string, error) {
	sum, err := hex.DecodeString(strings.TrimPrefix(digest, "sha256:"))
	if err != nil || len(sum) != sha256.Size {
		return "", invalid("disk %q: not sha256:<64 hex digits>", digest)
	}
	return diskName(sum), nil
}

// Link makes path a disk that this node has, by its digest; fs.ErrNotExist if it has none.
func (c *Cache) Link(ctx context.Context, digest, path string) error {
	name, err := nameOf(digest)
	if err != nil {
		return err
	}
	_, err = c.use(ctx, name, path)
	return err
}

// Keep writes what r gives, which is not trusted, into the cache, and makes path a link to it.
// It reads to the end. DataLoss if that is not the content of the digest.
func (c *Cache) Keep(ctx context.Context, digest string, r io.Reader, path string) error {
	name, err := nameOf(digest)
	if err != nil {
		return err
	}
	if _, err := c.store(ctx, name, r, path, ""); err != nil {
		return err
	}
	if err := c.evict(); err != nil {
		slog.WarnContext(ctx, "evict disks from the cache", "error", err)
	}
	return nil
}

// store has room made for the disk, but not by the one named keep, which it comes from.
func (c *Cache) store(ctx context.Context, name string, r io.Reader, path, keep string) (Disk, error) {
	d, err := c.build(name, keep, func(string) string { return path }, func(w io.Writer, _ string) error {
		_, err := io.Copy(w, interruptible{ctx, r})
		return err
	})
	return d, refusedByDisk(err)
}

// build writes an image in a scratch directory and publishes it under its digest. Where want
// is not empty, that is the name which the content has to have; link says where a VM holds it. No
// room is made by removing the disk named keep.
func (c *Cache) build(want, keep string, link func(name string) string,
	write func(w io.Writer, scratch string) error) (_ Disk, err error) {
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
	if err := write(io.MultiWriter(evicting{f, c, keep}, h), scratch); err != nil {
		return Disk{}, err
	}
	name := diskName(h.Sum(nil))
	if want != "" && name != want {
		return Disk{}, fmt.Errorf("disk %s: its content is %s: %w", digestOf(want), digestOf(name), errdefs.ErrDataLoss)
	}
	if err := f.Sync(); err != nil {
		return Disk{}, err
	}
	return c.publish(tmp, name, link(name))
}

// publish may meet the same content, and its eviction, by another process.
func (c *Cache) publish(tmp, name, link string) (Disk, error) {
	for try := 0; ; try++ {
		if err := os.Link(tmp, c.path(verified, name)); err != nil && !errors.Is(err, fs.ErrExist) {
			return Disk{}, err
		}
		d, err := c.link(name, link)
		if errors.Is(err, fs.ErrNotExist) && try < 3 {
			continue
		}
		if err != nil {
			return Disk{}, err
		}
		return d, errors.Join(durable.SyncDir(c.path(verified)), durable.SyncDir(filepath.Dir(link)))
	}
}

// use links a disk, and verifies it before where an earlier build has left it.
func (c *Cache) use(ctx context.Context, name, link string) (Disk, error) {
	d, err := c.link(name, link)
	if !errors.Is(err, fs.ErrNotExist) {
		return d, err
	}
	if _, old := os.Lstat(c.path(unverified, name)); errors.Is(old, fs.ErrNotExist) {
		return Disk{}, err
	}
	// A holder of a chain's lock may wait for this one, and never the other way round.
	unlock, err := c.lock(ctx, "disk-"+name[len("sha256-"):][:2])
	if err != nil {
		return Disk{}, err
	}
	defer unlock()
	if d, err = c.link(name, link); !errors.Is(err, fs.ErrNotExist) {
		return d, err // another process was faster
	}
	return c.verify(ctx, name, link)
}

// verify takes over a disk that a build left which believed its worker. The content is copied:
// no process can have the copy open to write. A disk for whose copy there is no room is given up
// if no other process holds it: it is built or fetched again, in its own place.
func (c *Cache) verify(ctx context.Context, name, link string) (Disk, error) {
	old := c.path(unverified, name)
	f, err := os.OpenFile(old, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return Disk{}, err
	}
	defer f.Close()
	size, free, err := usage(f)
	if err != nil {
		return Disk{}, err
	}
	keep := filepath.Join(unverified, name)
	if err := c.evictTo(c.max-size, keep); err != nil {
		return Disk{}, err
	}
	d, err := c.store(ctx, name, f, link, keep)
	if free && errdefs.IsResourceExhausted(err) {
		slog.WarnContext(ctx, "a disk in the cache cannot be copied and compared: it is thrown away", "file", old,
			"error", err)
		return Disk{}, errors.Join(os.Remove(old), fmt.Errorf("%s: no room for a copy: %w", name, fs.ErrNotExist))
	}
	if errdefs.IsDataLoss(err) {
		slog.WarnContext(ctx, "a disk in the cache has not the content of its digest: it is thrown away", "file", old,
			"error", err)
		err = fmt.Errorf("%w: %w", err, fs.ErrNotExist) // of a disk with that content
	} else if err != nil {
		return Disk{}, err
	}
	return d, errors.Join(err, os.Remove(old))
}

// usage answers how much of the host's disk the file takes, and whether it has no second name.
func usage(f *os.File) (size int64, free bool, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, false, &os.PathError{Op: "stat", Path: f.Name(), Err: err}
	}
	return st.Blocks * 512, st.Nlink == 1, nil
}

// link makes link a disk that was verified, and marks that as just used.
func (c *Cache) link(name, link string) (Disk, error) {
	err := os.Link(c.path(verified, name), link)
	if errors.Is(err, fs.ErrExist) { // what was there need not be this one
		if err = os.Remove(link); err == nil {
			err = os.Link(c.path(verified, name), link)
		}
	}
	if errors.Is(err, unix.EXDEV) {
		return Disk{}, fmt.Errorf("%w: put cache and VMs on one file system (state_dir): %w", err,
			errdefs.ErrFailedPrecondition)
	}
	if err != nil {
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
