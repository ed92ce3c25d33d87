package cache

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// fullFile in a directory of objects says that nothing may be added there: all that could
// be evicted has gone.
const fullFile = "full"

// entry is a file of the cache.
type entry struct {
	key, name string
	size      int64
	used      time.Time
}

// Evict deletes what was used longest ago until the rest is within the limit and the file system
// has room. It never deletes anything of a repository that a job uses. Where another process
// evicts already, it does nothing.
func (c *Cache) Evict() error {
	f, err := c.evicting()
	if f == nil {
		return err
	}
	defer f.Close()
	entries, keys, err := c.list()
	if err != nil {
		return fmt.Errorf("evict from cache: %w", err)
	}
	var total int64
	for _, e := range entries {
		total += e.size
	}
	left, err := spare(c.dir)
	if err != nil {
		return fmt.Errorf("evict from cache: %w", err)
	}
	limit := max(0, min(c.max, total+left))
	slices.SortFunc(entries, func(a, b entry) int { return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.name, b.name)) })
	r := remover{cache: c, locks: map[string]*os.File{}, left: map[string]int{}}
	defer r.close()
	for _, e := range entries {
		r.left[e.key]++
	}
	for _, e := range entries {
		if total <= limit {
			break
		}
		if r.remove(e) {
			total -= e.size
		}
	}
	if r.evicted > 0 {
		r.err = errors.Join(r.err, c.Note(Usage{EvictedBytes: uint64(r.evicted)}))
	}
	for _, k := range keys {
		c.flag(k, total > limit)
	}
	if r.err != nil {
		return fmt.Errorf("evict from cache: %w", r.err)
	}
	return nil
}

// evicting takes the lock of who evicts; nil: there is no cache, or somebody is at it.
func (c *Cache) evicting() (*os.File, error) {
	f, err := os.OpenFile(c.path(lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("evict from cache: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, nil
	}
	return f, nil
}

// flag tells who uses a repository whether more may be kept.
func (c *Cache) flag(k string, full bool) {
	path := c.path(k, blobs, fullFile)
	if !full {
		_ = os.Remove(path)
		return
	}
	if f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600); err == nil {
		f.Close()
	}
}

// list returns the objects, and the keys of the repositories.
func (c *Cache) list() (entries []entry, keys []string, err error) {
	dirs, err := os.ReadDir(c.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	for _, dir := range dirs {
		if !dir.IsDir() {
			continue
		}
		if strings.HasPrefix(dir.Name(), gone) {
			_ = empty(c.path(dir.Name())) // its deletion died
			continue
		}
		files, err := os.ReadDir(c.path(dir.Name(), blobs))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, nil, err
		}
		keys = append(keys, dir.Name())
		for _, f := range files {
			info, err := f.Info()
			if err != nil || f.Name() == fullFile {
				continue // gone, or none
			}
			e := entry{key: dir.Name(), name: f.Name(), size: info.Size(), used: info.ModTime()}
			if st, ok := info.Sys().(*syscall.Stat_t); ok {
				e.size = st.Blocks * 512
			}
			entries = append(entries, e)
		}
	}
	return entries, keys, nil
}

// remover deletes objects of repositories that no job uses.
type remover struct {
	cache   *Cache
	locks   map[string]*os.File // nil: somebody uses it
	left    map[string]int
	evicted int64
	err     error
}

func (r *remover) remove(e entry) bool {
	lock, asked := r.locks[e.key]
	if !asked {
		var err error
		lock, err = r.cache.locked(e.key, unix.LOCK_EX|unix.LOCK_NB)
		if err != nil && !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, fs.ErrNotExist) {
			r.err = errors.Join(r.err, err)
		}
		r.locks[e.key] = lock
	}
	if lock == nil {
		return false
	}
	// A worker that a snapshot has taken over may have made a directory.
	if err := os.RemoveAll(filepath.Join(r.cache.path(e.key, blobs), e.name)); err != nil {
		r.err = errors.Join(r.err, err)
		return false
	}
	r.evicted += e.size
	if r.left[e.key]--; r.left[e.key] == 0 {
		r.err = errors.Join(r.err, r.cache.delete(e.key))
	}
	return true
}

func (r *remover) close() {
	for _, f := range r.locks {
		if f != nil {
			f.Close()
		}
	}
}
