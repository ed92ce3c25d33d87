package agentd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"godwit.dev/godwit/guest/stage/inroot"

	"golang.org/x/sys/unix"
)

// removeTree removes what a container has left below a path, if it is there. It follows no link. Two directories are
// open at a time: os.RemoveAll opens one for each level, and a container makes more of them than the agent may open.
func removeTree(path string) error {
	path = filepath.Clean(path)
	parent, err := os.OpenFile(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer parent.Close()
	return removeTreeAt(parent, filepath.Base(path))
}

// removeTreeAt is removeTree of a name in a directory.
func removeTreeAt(parent *os.File, name string) error {
	full, err := removeOne(parent, name)
	if !full || err != nil {
		return err
	}
	top, err := openDir(int(parent.Fd()), name)
	if err != nil {
		return err
	}
	defer top.Close()
	lifted := 0
	err = eachName(top, func(name string) error {
		full, err := removeOne(top, name)
		if !full || err != nil {
			return err
		}
		child, err := openDir(int(top.Fd()), name)
		if err != nil {
			return err
		}
		defer child.Close()
		if err := eachName(child, func(below string) error { return lift(child, below, top, &lifted) }); err != nil {
			return err
		}
		_, err = removeOne(top, name)
		return err
	})
	if err != nil {
		return err
	}
	if full, err := removeOne(parent, name); err != nil || !full {
		return err
	}
	return &os.PathError{Op: "remove", Path: name, Err: unix.ENOTEMPTY}
}

// lift removes a name of a directory, or moves what is not empty up to the top.
func lift(dir *os.File, name string, top *os.File, lifted *int) error {
	for {
		full, err := removeOne(dir, name)
		if !full || err != nil {
			return err
		}
		free := fmt.Sprintf(".gone%d", *lifted)
		*lifted++
		err = allowed(dir, name, func() error { return unix.Renameat(int(dir.Fd()), name, int(top.Fd()), free) })
		switch err {
		case nil:
			return nil
		case unix.ENOTEMPTY, unix.EEXIST, unix.ENOTDIR: // the container has that name, too
		default:
			return &os.PathError{Op: "rename", Path: name, Err: err}
		}
	}
}

// removeOne removes a name that is no directory, or an empty one. full says that it is a directory that is not empty.
func removeOne(dir *os.File, name string) (full bool, err error) {
	err = allowed(dir, name, func() error {
		err := unix.Unlinkat(int(dir.Fd()), name, 0)
		if err == unix.EISDIR {
			err = unix.Unlinkat(int(dir.Fd()), name, unix.AT_REMOVEDIR)
		}
		return err
	})
	switch err {
	case nil, unix.ENOENT:
		return false, nil
	case unix.ENOTEMPTY, unix.EEXIST:
		return true, nil
	}
	return false, &os.PathError{Op: "remove", Path: name, Err: err}
}

// allowed does what the flags of an immutable file or directory forbid.
func allowed(dir *os.File, name string, do func() error) error {
	err := do()
	if err != unix.EPERM {
		return err
	}
	changeable(dir)
	if fd, no := unix.Openat(int(dir.Fd()), name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); no == nil {
		found := os.NewFile(uintptr(fd), name)
		var st unix.Stat_t
		if f, no := inroot.Regular(found, unix.O_RDONLY); no == nil {
			changeable(f)
			f.Close()
		} else if unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
			if sub, no := openDir(int(dir.Fd()), name); no == nil {
				changeable(sub)
				sub.Close()
			}
		}
		found.Close()
	}
	return do()
}

// Of linux/fs.h: FS_IMMUTABLE_FL and FS_APPEND_FL.
const (
	flagImmutable  = 0x10
	flagAppendOnly = 0x20
)

// changeable takes these flags of a file away. Whether it was possible is seen by what follows.
func changeable(f *os.File) {
	if flags, err := unix.IoctlGetUint32(int(f.Fd()), unix.FS_IOC_GETFLAGS); err == nil {
		flags &^= flagImmutable | flagAppendOnly
		_ = unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, int(flags))
	}
}

// eachName calls do for the names of a directory, until it has none. do removes each.
func eachName(dir *os.File, do func(name string) error) error {
	const batch = 1024
	for {
		if _, err := dir.Seek(0, io.SeekStart); err != nil {
			return err
		}
		names, err := dir.Readdirnames(batch)
		if len(names) == 0 && errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := do(name); err != nil {
				return err
			}
		}
	}
}
