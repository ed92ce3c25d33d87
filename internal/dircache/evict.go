package dircache

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Entry is one of a cache.
type Entry struct {
	Name string
	Used time.Time
	Size uint64 // of its files, in bytes
}

// Bounds of a cache.
type Bounds struct {
	Count int    // entries
	Bytes uint64 // of all their files
}

// List returns the entries, those first that were used last.
func (c Cache) List() ([]Entry, error) {
	dirs, err := os.ReadDir(c.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", c.Dir, err)
	}
	var all []Entry
	for _, d := range dirs {
		if !d.IsDir() || !entryName.MatchString(d.Name()) {
			continue
		}
		e, err := c.entry(d.Name())
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed since
		}
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", c.Dir, err)
		}
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b Entry) int { return b.Used.Compare(a.Used) })
	return all, nil
}

func (c Cache) entry(name string) (Entry, error) {
	info, err := os.Lstat(c.Path(name))
	if err != nil {
		return Entry{}, err
	}
	e := Entry{Name: name, Used: info.ModTime()}
	files, err := os.ReadDir(c.Path(name))
	for _, f := range files {
		if info, err := f.Info(); err == nil {
			e.Size += uint64(info.Size())
		}
	}
	return e, err
}

// Evict removes entries that keep does not want, and then those that were used longest ago
// until the rest is within the bounds. What is leased stays, and counts. It removes what
// crashes have left. The caller has the lock. A nil keep wants all.
func (c Cache) Evict(b Bounds, keep func(name string) bool) error {
	errs := []error{c.clean()}
	all, err := c.List()
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	var wanted []Entry
	for _, e := range all {
		if keep == nil || keep(e.Name) {
			wanted = append(wanted, e)
			continue
		}
		if _, err := c.evict(e.Name); err != nil {
			errs = append(errs, err)
		}
	}
	count, total := len(wanted), uint64(0)
	for _, e := range wanted {
		total += e.Size
	}
	for _, e := range slices.Backward(wanted) {
		if count <= b.Count && total <= b.Bytes {
			break
		}
		gone, err := c.evict(e.Name)
		if err != nil {
			errs = append(errs, err)
		}
		if gone {
			count, total = count-1, total-e.Size
		}
	}
	return errors.Join(errs...)
}

// evict removes an entry that has no lease, and reports whether it is gone.
func (c Cache) evict(name string) (bool, error) {
	lock, err := locked(c.Path(name), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("evict %s: %w", c.Path(name), err)
	}
	defer lock.Close()
	err = c.Remove(name)
	return err == nil, err
}

// clean removes what makers and removers that are gone have left.
func (c Cache) clean() error {
	dirs, err := os.ReadDir(c.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("clean %s: %w", c.Dir, err)
	}
	var errs []error
	for _, d := range dirs {
		if !strings.HasPrefix(d.Name(), passing) {
			continue
		}
		if d.IsDir() {
			lock, err := locked(c.Path(d.Name()), unix.LOCK_EX|unix.LOCK_NB)
			if err != nil {
				continue // its maker lives, or it is gone
			}
			defer lock.Close()
		}
		errs = append(errs, os.RemoveAll(c.Path(d.Name())))
	}
	return errors.Join(errs...)
}
