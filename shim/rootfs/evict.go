package rootfs

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// lockPoll is how often a lock that another process holds is asked for again.
const lockPoll = 20 * time.Millisecond

// lock waits for the file lock of that name. It dies with the process.
func (c *Cache) lock(ctx context.Context, name string) (unlock func(), err error) {
	f, err := os.OpenFile(c.path("locks", name), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, &os.PathError{Op: "lock", Path: f.Name(), Err: err}
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, &os.PathError{Op: "lock", Path: f.Name(), Err: context.Cause(ctx)}
		case <-tick.C:
		}
	}
}

// scratch makes a directory that cleanScratch of another process leaves alone while
// this one lives.
func (c *Cache) scratch() (dir string, release func() error, err error) {
	unlock, err := c.lock(context.Background(), "tmp")
	if err != nil {
		return "", nil, err
	}
	defer unlock()
	if dir, err = os.MkdirTemp(c.path("tmp"), "build-"); err != nil {
		return "", nil, err
	}
	f, err := os.Open(dir)
	if err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return "", nil, errors.Join(err, f.Close(), os.RemoveAll(dir))
	}
	return dir, func() error { return errors.Join(os.RemoveAll(dir), f.Close()) }, nil
}

// cleanScratch removes the directories that no living process holds.
func (c *Cache) cleanScratch() error {
	unlock, err := c.lock(context.Background(), "tmp")
	if err != nil {
		return err
	}
	defer unlock()
	entries, err := os.ReadDir(c.path("tmp"))
	if err != nil {
		return err
	}
	for _, e := range entries {
		f, err := os.Open(c.path("tmp", e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			err = os.RemoveAll(c.path("tmp", e.Name()))
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}

type cached struct {
	name string // with its directory
	size int64
	used time.Time
	free bool // no VM holds a link
}

// evict removes the disks that were used longest ago until the rest fits.
func (c *Cache) evict() error { return c.evictTo(c.max, "") }

// evictTo removes unused disks, except the one named keep, until no more than limit bytes are left.
func (c *Cache) evictTo(limit int64, keep string) error {
	free, total, err := c.unused(keep)
	if err != nil {
		return err
	}
	removed := false
	for _, d := range free {
		if total <= limit {
			break
		}
		if err := c.drop(d); err != nil {
			return err
		}
		total, removed = total-d.size, true
	}
	if !removed {
		return nil
	}
	return c.dropDangling()
}

// evictOne removes the unused disk that was used longest ago; false if there is none.
func (c *Cache) evictOne(keep string) (bool, error) {
	free, _, err := c.unused(keep)
	if err != nil || len(free) == 0 {
		return false, err
	}
	return true, errors.Join(c.drop(free[0]), c.dropDangling())
}

// unused lists the disks that no VM holds, the one that was used longest ago first, and the size
// of all disks. One that gets a user at this moment lives on by the user's link.
func (c *Cache) unused(keep string) (free []cached, total int64, err error) {
	disks, err := c.list()
	for _, d := range disks {
		total += d.size
		if d.free && d.name != keep {
			free = append(free, d)
		}
	}
	slices.SortFunc(free, func(a, b cached) int { return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.name, b.name)) })
	return free, total, err
}

func (c *Cache) drop(d cached) error {
	if err := os.Remove(c.path(d.name)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (c *Cache) list() ([]cached, error) {
	var disks []cached
	for _, dir := range []string{verified, unverified} {
		entries, err := os.ReadDir(c.path(dir))
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			info, err := e.Info()
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, err
			}
			d := cached{name: filepath.Join(dir, e.Name()), size: info.Size(), used: info.ModTime()}
			if st, ok := info.Sys().(*syscall.Stat_t); ok {
				d.size, d.free = st.Blocks*512, st.Nlink == 1
			}
			disks = append(disks, d)
		}
	}
	return disks, nil
}

// dropDangling removes the chains whose disk is gone. One that is pointed at a new disk at this
// moment is not found any more and built again.
func (c *Cache) dropDangling() error {
	entries, err := os.ReadDir(c.path("chains"))
	if err != nil {
		return err
	}
	for _, e := range entries {
		link := c.path("chains", e.Name())
		there, err := c.hasDisk(link)
		if err != nil {
			return err
		}
		if there {
			continue
		}
		if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// hasDisk reports whether a chain's disk is there. A chain of an earlier build names another
// directory than the one where its disk may be now.
func (c *Cache) hasDisk(link string) (bool, error) {
	name, err := os.Readlink(link)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil // nothing to remove
	}
	if err != nil {
		return false, err
	}
	for _, dir := range []string{verified, unverified} {
		if _, err := os.Lstat(c.path(dir, filepath.Base(name))); !errors.Is(err, fs.ErrNotExist) {
			return true, err
		}
	}
	return false, nil
}
