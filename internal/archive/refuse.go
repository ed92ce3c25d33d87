package archive

import (
	"archive/tar"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// parents makes the directories that an archive left out, after a look at those that are there.
func (u *Unpacker) parents(name string) error {
	dir := path.Dir(name)
	if dir == "." {
		return nil
	}
	if !u.Follow {
		for end := 0; end < len(dir); end++ {
			if end+1 < len(dir) && dir[end+1] != '/' {
				continue
			}
			info, err := u.Root.Lstat(dir[:end+1])
			if errors.Is(err, fs.ErrNotExist) {
				break
			}
			if err == nil && info.Mode().Type() == fs.ModeSymlink {
				err = fmt.Errorf("%s is a symbolic link, which is not followed: copy to where it leads, "+
					"or take it away: %w", dir[:end+1], errdefs.ErrFailedPrecondition)
			}
			if err != nil {
				return err
			}
		}
	}
	return u.Root.MkdirAll(dir, 0o755)
}

// fits refuses a file that cannot fit before a byte of it is written.
func (u *Unpacker) fits(h *tar.Header) error {
	free, err := freeBytes(u.Root)
	if err != nil {
		return err
	}
	if h.Size > 0 && uint64(h.Size) > free {
		return fmt.Errorf("it has %d bytes, and the disk has room for %d: %w", h.Size, free, syscall.ENOSPC)
	}
	return nil
}

// Dense refuses a member with holes: few bytes of it can stand for more than any disk has, and for
// hours of reading even where the member is skipped.
func Dense(h *tar.Header) error {
	sparse := h.Typeflag == tar.TypeGNUSparse
	for key := range h.PAXRecords {
		sparse = sparse || strings.HasPrefix(key, "GNU.sparse.")
	}
	if sparse {
		return fmt.Errorf("a sparse member can stand for any size: make the archive without --sparse: %w",
			errdefs.ErrInvalidArgument)
	}
	return nil
}

// freeBytes is what the file system of a directory has room for.
func freeBytes(root *os.Root) (uint64, error) {
	dir, err := root.Open(".")
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &st); err != nil {
		return 0, fmt.Errorf("read the free space: %w", err)
	}
	return st.Bavail * uint64(st.Bsize), nil
}

// why says what is the matter with a member, and what to do where that helps.
func why(name string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("write %s: no space is left: make room, and copy again: %w: %w", name, err,
			errdefs.ErrResourceExhausted)
	case errors.Is(err, syscall.EROFS):
		return fmt.Errorf("write %s: the file system is read-only: %w: %w", name, err, errdefs.ErrFailedPrecondition)
	}
	return fmt.Errorf("write %s: %w", name, err)
}
