package exitwatch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// tree tells what appears in directories. The reader of next is the only one that adds.
type tree struct {
	file *os.File
	once sync.Once
	dirs map[int32]string
	buf  [64 << 10]byte
}

func newTree() (*tree, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("make inotify: %w", err)
	}
	return &tree{file: os.NewFile(uintptr(fd), "inotify"), dirs: map[int32]string{}}, nil
}

func (t *tree) close() { t.once.Do(func() { t.file.Close() }) }

// add watches a directory; one that is gone, or is none, or is watched, is done with.
func (t *tree) add(dir string) error {
	raw, err := t.file.SyscallConn()
	if err != nil {
		return err
	}
	var wd int
	var failed error
	err = raw.Control(func(fd uintptr) {
		wd, failed = unix.InotifyAddWatch(int(fd), dir, unix.IN_CREATE|unix.IN_MOVED_TO|unix.IN_ONLYDIR)
	})
	switch {
	case err != nil:
		return err
	case errors.Is(failed, unix.ENOENT), errors.Is(failed, unix.ENOTDIR):
		return nil
	case failed != nil:
		return fmt.Errorf("watch %s: %w", dir, failed)
	}
	t.dirs[int32(wd)] = dir
	return nil
}

// next waits and answers the paths that have appeared, or the path of the tree itself
// where the kernel had to drop some.
func (t *tree) next() ([]string, error) {
	n, err := t.file.Read(t.buf[:])
	if err != nil {
		return nil, fmt.Errorf("read inotify: %w", err)
	}
	var paths []string
	for rest := t.buf[:n]; len(rest) >= unix.SizeofInotifyEvent; {
		wd := int32(binary.NativeEndian.Uint32(rest))
		mask, size := binary.NativeEndian.Uint32(rest[4:]), binary.NativeEndian.Uint32(rest[12:])
		name := bytes.TrimRight(rest[unix.SizeofInotifyEvent:unix.SizeofInotifyEvent+size], "\x00")
		rest = rest[unix.SizeofInotifyEvent+size:]
		dir, known := t.dirs[wd]
		switch {
		case mask&unix.IN_Q_OVERFLOW != 0:
			paths = append(paths, t.root())
		case mask&unix.IN_IGNORED != 0:
			delete(t.dirs, wd)
		case known:
			paths = append(paths, filepath.Join(dir, string(name)))
		}
	}
	return paths, nil
}

// root is the directory that was added first: the shortest path.
func (t *tree) root() (root string) {
	for _, dir := range t.dirs {
		if root == "" || len(dir) < len(root) {
			root = dir
		}
	}
	return root
}
