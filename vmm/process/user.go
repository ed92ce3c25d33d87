package process

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/containerd/errdefs"
)

// User is whom a process runs as. The zero value is the caller.
type User struct {
	ID int // of user and group
}

// ErrRoot is of a VMM that would run as root.
var ErrRoot = fmt.Errorf("its VMM would run as root: set vmm.first_user to a user from 1000 on, or vmm.allow_root = "+
	"true: %w",
	errdefs.ErrFailedPrecondition)

// Owner is the user that a VMM of that RAM is: the owner of the file. RAM of root's makes
// it root, which allowRoot must permit; ErrRoot otherwise. A caller that is not root
// itself can only make it the caller.
func Owner(ram *os.File, allowRoot bool) (User, error) {
	owner, err := stat(ram)
	if err != nil || os.Geteuid() != 0 {
		return User{}, err
	}
	if owner.Uid == 0 && !allowRoot {
		return User{}, fmt.Errorf("RAM %s belongs to root: %w", ram.Name(), ErrRoot)
	}
	return User{ID: int(owner.Uid)}, nil
}

// Private answers a file by whose descriptor, through /proc/self/fd, the user can open what file is: for writing too if
// write is set. That is file itself where its rights allow it; a regular one that is to be written becomes the user's.
// A device gets a node that no other user sees, and what others may not read is shown as if it were the user's. An
// answer that is not file is for the caller to close.
func (u User) Private(file *os.File, write bool) (*os.File, error) {
	info, err := stat(file)
	if err != nil || os.Geteuid() != 0 {
		return file, err
	}
	readable := info.Mode&0o004 != 0 || int(info.Uid) == u.ID
	switch {
	case info.Mode&syscall.S_IFMT != syscall.S_IFREG:
		return u.node(file.Name(), info, write)
	case write:
		if err := file.Chown(u.ID, -1); err != nil {
			return nil, fmt.Errorf("give %s to user %d: %w: %w", file.Name(), u.ID, errdefs.ErrInvalidArgument, err)
		}
	case !readable:
		shown, err := u.mapOwner(file, info)
		if err != nil {
			return nil, fmt.Errorf("%s is not readable by everybody, and cannot be shown to user %d alone; allow it to be "+
				"read: %w: %w",
				file.Name(), u.ID, errdefs.ErrFailedPrecondition, err)
		}
		return shown, nil
	}
	return file, nil
}

func stat(f *os.File) (*syscall.Stat_t, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errdefs.ErrInvalidArgument, err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil, errors.Join(errdefs.ErrInternal, errors.New("no owner of "+f.Name()))
	}
	return st, nil
}

// credential is for the kernel; nil: the caller's.
func (u User) credential() *syscall.Credential {
	if u.ID == 0 {
		return nil
	}
	return &syscall.Credential{Uid: uint32(u.ID), Gid: uint32(u.ID)}
}
