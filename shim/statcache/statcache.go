// Package statcache keeps, in a file of the node, facts that were found out about other files.
// A fact holds while stat(2) of its files answers the same. To hash the guest's kernel and to
// ask the VMM for its version would cost every start some ten milliseconds.
package statcache

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// settled is how long ago a file must have changed before it is remembered: a change
// within the clock's step would look like the file that was read.
const settled = time.Second

// most entries that the file holds; a node has a few.
const most = 32

// Cache is one file. Without a path nothing is remembered. Processes that write it at the same
// time lose an entry at most.
type Cache struct {
	Path string
	Now  func() time.Time // nil: time.Now
}

// identity is what changes when a file does: another content under the same identity
// would need a clock set back.
type identity struct {
	Path     string
	Dev, Ino uint64
	Size     int64
	Changed  int64 // ns; set by the kernel at every change, unlike the time of writing
}

type entry struct {
	Files []identity
	Value string
}

// Of answers what find has found for these files, now or at an earlier call. A file that
// cannot be kept is no error: the next call finds it again.
func (m Cache) Of(kind string, paths []string, find func() (string, error)) (string, error) {
	before, err := identify(paths)
	if err != nil || m.Path == "" {
		return find() // which says what is missing
	}
	name := kind + " " + strings.Join(paths, " ")
	known := m.read()
	if e, ok := known[name]; ok && slices.Equal(e.Files, before) {
		return e.Value, nil
	}
	value, err := find()
	if err != nil {
		return "", err
	}
	after, err := identify(paths)
	if err != nil || !slices.Equal(before, after) || m.recentlyChanged(after) {
		return value, nil
	}
	if len(known) >= most {
		known = map[string]entry{}
	}
	known[name] = entry{Files: before, Value: value}
	_ = m.write(known)
	return value, nil
}

func identify(paths []string) ([]identity, error) {
	all := make([]identity, 0, len(paths))
	for _, path := range paths {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			return nil, fmt.Errorf("stat %s: %w", path, err)
		}
		all = append(all, identity{Path: path, Dev: st.Dev, Ino: st.Ino, Size: st.Size, Changed: st.Ctim.Nano()})
	}
	return all, nil
}

func (m Cache) recentlyChanged(all []identity) bool {
	now := time.Now
	if m.Now != nil {
		now = m.Now
	}
	limit := now().Add(-settled).UnixNano()
	return slices.ContainsFunc(all, func(id identity) bool { return id.Changed > limit })
}

// read answers what is there; a file that is damaged is as good as none.
func (m Cache) read() map[string]entry {
	known := map[string]entry{}
	data, err := os.ReadFile(m.Path)
	if err != nil || json.Unmarshal(data, &known) != nil {
		return map[string]entry{}
	}
	maps.DeleteFunc(known, func(_ string, e entry) bool { return len(e.Files) == 0 })
	return known
}

func (m Cache) write(known map[string]entry) error {
	data, err := json.Marshal(known)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(m.Path), ".facts-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(f.Name(), m.Path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}
