package agentd

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"godwit.dev/godwit/guest/stage/inroot"

	"golang.org/x/sys/unix"
)

// tree is what a directory holds: the trees of its directories, nil for all else.
type tree map[string]tree

// dataLink is the link of a volume that kubelet writes: it leads to the directory with the files
// of the newest revision.
const dataLink = "..data"

// openDir opens a directory, and no link to one.
func openDir(at int, name string) (*os.File, error) {
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

func namesOf(dir *os.File) (tree, error) {
	entries, err := dir.ReadDir(-1)
	if err != nil {
		return nil, err
	}
	names := make(tree, len(entries))
	for _, e := range entries {
		names[e.Name()] = nil
		if !e.IsDir() {
			continue
		}
		below, err := openDir(int(dir.Fd()), e.Name())
		if err != nil {
			return nil, err
		}
		names[e.Name()], err = namesOf(below)
		below.Close()
		if err != nil {
			return nil, err
		}
	}
	return names, nil
}

// union has what either has. Where one has a directory and the other has none, there is a directory.
func union(a, b tree) tree {
	for name, below := range b {
		if mine, found := a[name]; !found || mine == nil {
			a[name] = below
		} else if below != nil {
			a[name] = union(mine, below)
		}
	}
	return a
}

// rank orders what is put into its place: directories and files, then the links to them, and the
// link last by which a reader comes from one revision to the next.
func rank(name string, mode uint32) int {
	switch {
	case name == dataLink:
		return 2
	case mode&unix.S_IFMT == unix.S_IFLNK:
		return 1
	}
	return 0
}

// place moves what is in from to the directory to, in the place of what has its name there.
func place(from, to *os.File, names tree) error {
	type entry struct {
		name string
		mode uint32
	}
	var entries []entry
	for name := range names {
		st, err := statAt(from, name)
		if errors.Is(err, os.ErrNotExist) { // it was moved by an attempt before
			continue
		}
		if err != nil {
			return err
		}
		entries = append(entries, entry{name, st.Mode})
	}
	slices.SortFunc(entries, func(a, b entry) int { return rank(a.name, a.mode) - rank(b.name, b.mode) })
	for _, e := range entries {
		if err := placeOne(from, to, e.name, names[e.name]); err != nil {
			return fmt.Errorf("put %s into its place: %w", e.name, err)
		}
	}
	return nil
}

func placeOne(from, to *os.File, name string, below tree) error {
	fresh, err := statAt(from, name)
	if err != nil {
		return err
	}
	old, err := statAt(to, name)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return renameAt(from, to, name)
	case err != nil:
		return err
	}
	isDir, wasDir := fresh.Mode&unix.S_IFMT == unix.S_IFDIR, old.Mode&unix.S_IFMT == unix.S_IFDIR
	switch {
	case isDir && wasDir:
		return placeBelow(from, to, name, fresh, below)
	case isDir != wasDir:
		if err := removeAt(to, name); err != nil {
			return err
		}
	case sameAt(from, to, name, fresh, old): // who watches it is not woken
		return nil
	}
	return renameAt(from, to, name)
}

func placeBelow(from, to *os.File, name string, fresh unix.Stat_t, below tree) error {
	source, err := openDir(int(from.Fd()), name)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := openDir(int(to.Fd()), name)
	if err != nil {
		return err
	}
	defer target.Close()
	if err := place(source, target, below); err != nil {
		return err
	}
	if err := unix.Fchown(int(target.Fd()), int(fresh.Uid), int(fresh.Gid)); err != nil {
		return err
	}
	return unix.Fchmod(int(target.Fd()), fresh.Mode&0o7777)
}

// prune removes what is not named.
func prune(dir *os.File, names tree) error {
	entries, err := dir.ReadDir(-1)
	if err != nil {
		return err
	}
	for _, e := range entries {
		below, named := names[e.Name()]
		switch {
		case !named:
			err = removeAt(dir, e.Name())
		case below != nil:
			err = pruneBelow(dir, e.Name(), below)
		}
		if err != nil {
			return fmt.Errorf("remove what is gone: %w", err)
		}
	}
	return nil
}

func pruneBelow(dir *os.File, name string, names tree) error {
	below, err := openDir(int(dir.Fd()), name)
	if err != nil {
		return err
	}
	defer below.Close()
	return prune(below, names)
}

func statAt(dir *os.File, name string) (st unix.Stat_t, err error) {
	if err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return st, &os.PathError{Op: "stat", Path: name, Err: err}
	}
	return st, nil
}

func renameAt(from, to *os.File, name string) error {
	return unix.Renameat(int(from.Fd()), name, int(to.Fd()), name)
}

// removeAt removes a name and all below it. It follows no link.
func removeAt(dir *os.File, name string) error { return removeTreeAt(dir, name) }

// sameAt reports whether two entries that are no directories are equal. One that cannot be read is not.
func sameAt(from, to *os.File, name string, a, b unix.Stat_t) bool {
	if a.Mode != b.Mode || a.Uid != b.Uid || a.Gid != b.Gid || a.Size != b.Size {
		return false
	}
	if a.Mode&unix.S_IFMT == unix.S_IFLNK {
		x, first := os.Readlink(filepath.Join(inroot.Path(from), name))
		y, second := os.Readlink(filepath.Join(inroot.Path(to), name))
		return first == nil && second == nil && x == y
	}
	x, first := readAt(from, name, a.Size)
	y, second := readAt(to, name, a.Size)
	return first == nil && second == nil && bytes.Equal(x, y)
}

func readAt(dir *os.File, name string, size int64) ([]byte, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	found := os.NewFile(uintptr(fd), name)
	defer found.Close()
	f, err := inroot.Regular(found, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, size+1))
}
