package network

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// tapFlags: one queue, no packet information, room for virtio's header before each
// frame. The kernel insists on the same queue kind at every opening.
const tapFlags = unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR

// sinkFlags: a sink is read by us, who have no use for virtio's header.
const sinkFlags = unix.IFF_TAP | unix.IFF_NO_PI

// openTap attaches a new descriptor to the tap of that name in the namespace, making
// the tap first if there is none. A tap made here lives as long as the descriptor.
func (s *session) openTap(name string, flags uint16) (tap *os.File, err error) {
	err = within(s.ns, func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return fmt.Errorf("open /dev/net/tun: %w", err)
		}
		req, err := unix.NewIfreq(name)
		if err == nil {
			req.SetUint16(flags)
			err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
		}
		if err != nil {
			unix.Close(fd)
			return err
		}
		// Only now: a descriptor without an interface polls as broken.
		tap = os.NewFile(uintptr(fd), name)
		return nil
	})
	if errors.Is(err, unix.EBUSY) {
		err = fmt.Errorf("a VMM has it open: %w", errdefs.ErrFailedPrecondition)
	}
	return tap, err
}

// claim opens a tap for the owner and leaves it down. made says that it was not there
// before; a claim that fails leaves none of its own.
func (s *session) claim(ctx context.Context, name string, flags uint16, alias string) (tap *os.File, made bool,
	err error) {
	l, err := s.link(name)
	if made = errdefs.IsNotFound(err); err != nil && !made {
		return nil, false, err
	}
	if !made {
		if l.Type() != "tuntap" || l.Attrs().Alias != alias {
			return nil, false, fmt.Errorf("claim tap %s: it is %q's: %w", name,
				l.Attrs().Alias, errdefs.ErrAlreadyExists)
		}
	}
	defer func() {
		if err != nil && tap != nil {
			tap.Close() // takes a tap that is not yet persistent with it
			tap = nil
		}
	}()
	err = s.step(ctx, "open tap", name, func() (err error) {
		tap, err = s.openTap(name, flags)
		return err
	})
	if err != nil {
		return nil, false, err
	}
	if l, err = s.link(name); err != nil {
		return tap, made, err
	}
	if !made {
		return tap, false, s.step(ctx, "set down", name, func() error { return s.nl.LinkSetDown(l) })
	}
	// Owner first, so that no tap without one stays if this process dies.
	err = s.step(ctx, "set alias of", name, func() error { return s.nl.LinkSetAlias(l, alias) })
	if err != nil {
		return tap, made, err
	}
	return tap, made, s.step(ctx, "keep tap", name, func() error { return control(tap, unix.TUNSETPERSIST, 1) })
}

func control(f *os.File, request uint, value int) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = unix.IoctlSetInt(int(fd), request, value) })
	return errors.Join(err, failed)
}

// deleteTapOf is the fence: a process that still holds the tap gets EBADFD for every frame from here on. A link of that
// name that is no tap of ours, or another owner's, stays.
func (s *session) deleteTapOf(link Link, name string) error {
	l, err := s.link(name)
	if err != nil {
		return ignoreMissing(err)
	}
	alias := l.Attrs().Alias
	_, ours := parseAlias(alias)
	if l.Type() != "tuntap" || !ours || link.foreign(alias) {
		return nil
	}
	return ignoreMissing(s.nl.LinkDel(l))
}

// takenOver reports whether another owner has attached the link's interface since: its frames go to a
// tap of that one, or are about to, which the name of the tap tells.
func (s *session) takenOver(link Link, iface netlink.Link) (bool, error) {
	targets, err := s.redirects(iface, nil)
	if err != nil {
		return false, err
	}
	all, err := dump(s.nl.LinkList)
	if err != nil {
		return false, fmt.Errorf("list interfaces: %w", err)
	}
	for _, l := range all {
		if (slices.Contains(targets, l.Attrs().Index) || l.Attrs().Name == link.Tap) && link.foreign(l.Attrs().Alias) {
			return true, nil
		}
	}
	return false, nil
}
