// Package treelist prints a directory tree in a canonical form, one line per name with
// all that an image of it must keep. Two trees are equal if their lists are. Tests run
// it on the host and, as a static program, in the guest.
package treelist

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

type fileID struct{ dev, ino uint64 }

type lister struct {
	out   *bufio.Writer
	names map[fileID][]string // of the inodes with several names in the tree
}

// Write lists the tree at root. Names in skip, relative to root, are left out together
// with what is below them, such as "proc".
func Write(w io.Writer, root string, skip ...string) error {
	l := &lister{out: bufio.NewWriter(w), names: make(map[fileID][]string)}
	for _, visit := range []func(path, name string) error{l.count, l.line} {
		if err := walk(root, skip, visit); err != nil {
			return fmt.Errorf("list tree %s: %w", root, err)
		}
	}
	if err := l.out.Flush(); err != nil {
		return fmt.Errorf("list tree %s: %w", root, err)
	}
	return nil
}

func walk(root string, skip []string, visit func(path, name string) error) error {
	return filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if !slices.Contains(skip, name) {
			return visit(path, name)
		}
		if d.IsDir() {
			return filepath.SkipDir
		}
		return nil
	})
}

// count gathers the names of each inode. The kernel's own count is no measure: an
// overlayfs tells that of a lower layer, names in it that are hidden included.
func (l *lister) count(path, name string) error {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return &os.PathError{Op: "lstat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR && st.Nlink > 1 {
		id := fileID{uint64(st.Dev), st.Ino}
		l.names[id] = append(l.names[id], name)
	}
	return nil
}

func (l *lister) line(path, name string) error {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return &os.PathError{Op: "lstat", Path: path, Err: err}
	}
	fmt.Fprintf(l.out, "%q mode=%06o owner=%d:%d mtime=%d.%09d", name, st.Mode, st.Uid, st.Gid, st.Mtim.Sec, st.Mtim.Nsec)
	if names := l.names[fileID{uint64(st.Dev), st.Ino}]; len(names) > 1 {
		fmt.Fprintf(l.out, " links=%d same=%q", len(names), names[0])
	}
	if err := l.content(path, &st); err != nil {
		return err
	}
	if err := l.xattrs(path); err != nil {
		return err
	}
	_, err := fmt.Fprintln(l.out)
	return err
}

func (l *lister) content(path string, st *unix.Stat_t) error {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		h := sha256.New()
		n, err := io.Copy(h, f)
		if err != nil {
			return err
		}
		fmt.Fprintf(l.out, " size=%d read=%d sha256=%s", st.Size, n, hex.EncodeToString(h.Sum(nil)))
	case unix.S_IFLNK:
		target, err := os.Readlink(path)
		if err != nil {
			return err
		}
		fmt.Fprintf(l.out, " to=%q", target)
	case unix.S_IFCHR, unix.S_IFBLK:
		fmt.Fprintf(l.out, " device=%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
	}
	return nil
}

func (l *lister) xattrs(path string) error {
	buf := make([]byte, 64<<10)
	n, err := unix.Llistxattr(path, buf)
	if errors.Is(err, unix.ENOTSUP) || err == nil && n == 0 {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "listxattr", Path: path, Err: err}
	}
	names := strings.Split(strings.TrimRight(string(buf[:n]), "\x00"), "\x00")
	slices.Sort(names)
	value := make([]byte, 64<<10)
	for _, name := range names {
		n, err := unix.Lgetxattr(path, name, value)
		if err != nil {
			return &os.PathError{Op: "getxattr " + name, Path: path, Err: err}
		}
		fmt.Fprintf(l.out, " %s=%s", name, hex.EncodeToString(value[:n]))
	}
	return nil
}
