package golden

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/internal/dircache"
)

const (
	tableFile = "table"
	oldSuffix = ".table"
)

// Tables are the page tables of golden snapshots on this node, an entry of a cache each, by
// the digest's hexadecimal digits. The release before had a file DIGEST.table for each, in
// another directory: its shims look there as long as they live, and what it has left there
// is taken over.
type Tables struct {
	dircache.Cache
	Old string // that directory
}

// TablesOf a node.
func TablesOf(cfg *config.Config) Tables {
	return Tables{Cache: dircache.Cache{Dir: cfg.GoldenTablesDir()}, Old: cfg.OldGoldenDir()}
}

func (t Tables) old(hex string) string { return filepath.Join(t.Old, hex+oldSuffix) }

// Table is one, open to be read, and leased.
type Table struct {
	*os.File
	lease *dircache.Lease // nil: of the release before
}

// Close lets go of it.
func (t *Table) Close() error {
	if t.lease == nil {
		return t.File.Close()
	}
	return errors.Join(t.File.Close(), t.lease.Close())
}

// Open a table for a push. NotFound: there is none.
func (t Tables) Open(hex string) (*Table, error) {
	lease, err := t.Use(hex)
	if errdefs.IsNotFound(err) {
		// The daemon is of the release before, until it is started again.
		if f, e := os.Open(t.old(hex)); e == nil {
			return &Table{File: f}, nil
		}
	}
	if err != nil {
		return nil, err
	}
	f, err := os.Open(filepath.Join(lease.Dir, tableFile))
	if err != nil {
		return nil, errors.Join(err, lease.Close())
	}
	return &Table{File: f, lease: lease}, nil
}

// Make has fill write a table, which is durable before it has its name: one that a power loss
// has cut would never be made again.
func (t Tables) Make(hex string, fill func(f *os.File) error) error {
	err := t.Add(hex, func(dir string) (err error) {
		f, err := os.OpenFile(filepath.Join(dir, tableFile), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
		if err != nil {
			return err
		}
		if err = fill(f); err == nil {
			err = f.Sync()
		}
		return errors.Join(err, f.Close())
	})
	if err != nil {
		return err
	}
	return t.show(hex)
}

// show makes a table known to shims of the release before.
func (t Tables) show(hex string) error {
	err := os.MkdirAll(t.Old, 0o700)
	if err == nil {
		err = os.Remove(t.old(hex))
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = os.Link(t.Path(hex, tableFile), t.old(hex))
	}
	return err
}

// Forget removes a table. That there is none is no error.
func (t Tables) Forget(hex string) error {
	err := os.Remove(t.old(hex))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, t.Remove(hex))
}

// Keep removes the tables that are too many, those first that were used longest ago. It does
// nothing while another process does so.
func (t Tables) Keep(bounds dircache.Bounds) error {
	lock, err := t.Lock()
	if errdefs.IsUnavailable(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	err = t.Evict(bounds, nil)
	for _, hex := range t.left() {
		if _, e := os.Lstat(t.Path(hex)); errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, os.Remove(t.old(hex)))
		}
	}
	return err
}

// left are the tables in the directory of the release before.
func (t Tables) left() (all []string) {
	files, _ := os.ReadDir(t.Old) // what cannot be listed is looked for the next time
	for _, f := range files {
		if hex, is := strings.CutSuffix(f.Name(), oldSuffix); is {
			all = append(all, hex)
		}
	}
	return all
}

// TakeOver makes entries of the tables that the release before has left, and answers how many.
func (t Tables) TakeOver() (n int, err error) {
	for _, hex := range t.left() {
		if _, e := os.Lstat(t.Path(hex)); e == nil {
			continue
		}
		info, e := os.Lstat(t.old(hex))
		if e != nil || !info.Mode().IsRegular() {
			continue
		}
		e = t.Add(hex, func(dir string) error { return os.Link(t.old(hex), filepath.Join(dir, tableFile)) })
		if e == nil {
			e = os.Chtimes(t.Path(hex), info.ModTime(), info.ModTime())
		}
		if e != nil {
			err = errors.Join(err, fmt.Errorf("take over table %s of a golden snapshot: %w", hex, e))
			continue
		}
		n++
	}
	return n, err
}
