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
	ID     int   // of user and group
	Groups []int // others
}

// Needs are what a process opens by itself.
type Needs struct {
	RAM    *os.File   // its owner is the user that the process should be
	Write  []*os.File // become that user's
	Read   []*os.File
	Device string // such as /dev/kvm, empty: none
}

// User says whom the process can be: the owner of its RAM, where that is not root and
// what it needs allows it; else the caller, and why. Descriptors that it inherits need no
// rights; files that it opens again do.
func (n Needs) User() (u User, why string, err error) {
	owner, err := stat(n.RAM)
	if err != nil || owner.Uid == 0 || os.Geteuid() != 0 {
		return User{}, "", err
	}
	u.ID = int(owner.Uid)
	for _, f := range n.Read {
		info, err := stat(f)
		if err != nil {
			return User{}, "", err
		}
		if info.Mode&0o004 == 0 && info.Uid != owner.Uid {
			return User{}, fmt.Sprintf("%s is not readable by everybody", f.Name()), nil
		}
	}
	for _, f := range n.Write {
		info, err := stat(f)
		if err != nil {
			return User{}, "", err
		}
		if info.Mode&syscall.S_IFMT != syscall.S_IFREG {
			return User{}, f.Name() + " is a device", nil
		}
	}
	if n.Device != "" {
		group, ok := reach(n.Device)
		if !ok {
			return User{}, n.Device + " is for root alone", nil
		}
		u.Groups = group
	}
	for _, f := range n.Write {
		if err := f.Chown(u.ID, -1); err != nil {
			return User{}, "", fmt.Errorf("give %s to user %d: %w: %w", f.Name(), u.ID, errdefs.ErrInvalidArgument, err)
		}
	}
	return u, "", nil
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

// reach is the group that a process needs to use the device.
func reach(device string) (groups []int, ok bool) {
	const all, group = 0o006, 0o060
	var st syscall.Stat_t
	if err := syscall.Stat(device, &st); err != nil {
		return nil, false
	}
	switch {
	case st.Mode&all == all:
		return nil, true
	case st.Mode&group == group && st.Gid != 0:
		return []int{int(st.Gid)}, true
	}
	return nil, false
}

// credential is for the kernel; nil: the caller's.
func (u User) credential() *syscall.Credential {
	if u.ID == 0 {
		return nil
	}
	c := &syscall.Credential{Uid: uint32(u.ID), Gid: uint32(u.ID)}
	for _, g := range u.Groups {
		c.Groups = append(c.Groups, uint32(g))
	}
	return c
}
