package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// undoTimeout bounds the way back after a failure.
const undoTimeout = 20 * time.Second

// Attach connects a tap to every link's interface, with the MAC and MTU of its NIC, and takes the interface's addresses
// and routes off it: they are the guest's now. Each tap carries the owner's name and is down until Up, so nothing flows
// yet.
//
// The links must be durable before: Detach needs them. A second Attach of the same
// owner opens the taps again, unless a VMM holds them. After a failure the namespace
// is as Read found it.
func Attach(ctx context.Context, netnsPath string, owner Owner, links []Link) (*Attachment, error) {
	return attach(ctx, netnsPath, owner, links, nil)
}

func attach(ctx context.Context, path string, owner Owner, links []Link, fail func(string) error) (*Attachment, error) {
	alias, err := owner.alias()
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		if l.Owner != "" && l.Owner != alias {
			return nil, fmt.Errorf("attach network of %s: interface %s is %s's: %w", owner.VM, l.Interface, l.Owner,
				errdefs.ErrInvalidArgument)
		}
	}
	// To flush an interface of the node would cut the node off.
	host, err := IsHost(path)
	if err != nil {
		return nil, fmt.Errorf("attach network of %s: %w", owner.VM, err)
	}
	if host {
		return nil, fmt.Errorf("attach network of %s: namespace %q is the node's own: %w", owner.VM, path,
			errdefs.ErrFailedPrecondition)
	}
	s, err := lockedSession(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("attach network of %s: %w", owner.VM, err)
	}
	defer s.unlock()
	s.fail = fail
	a := &Attachment{s: s, links: slices.Clone(links), files: map[string]*os.File{}}
	if err := a.claim(ctx, alias); err != nil {
		a.Close()
		return nil, fmt.Errorf("attach network of %s: %w", owner.VM, err)
	}
	for _, l := range links {
		if err = s.join(ctx, l); err != nil {
			break
		}
	}
	if err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		s.fail = nil
		return nil, fmt.Errorf("attach network of %s: %w", owner.VM, errors.Join(err, s.detach(undo, links), a.Close()))
	}
	s.fail = nil
	return a, nil
}

// claim opens all taps or none.
func (a *Attachment) claim(ctx context.Context, alias string) error {
	var made []string
	claim := func(name string, flags uint16) (*os.File, error) {
		tap, fresh, err := a.s.claim(ctx, name, flags, alias)
		if err != nil {
			for _, name := range made {
				err = errors.Join(err, a.s.deleteTapOf(Link{Owner: alias}, name))
			}
			return nil, err
		}
		if fresh {
			made = append(made, name)
		}
		return tap, nil
	}
	for _, l := range a.links {
		tap, err := claim(l.Tap, tapFlags)
		if err != nil {
			return err
		}
		a.taps = append(a.taps, tap)
		if l.Sink == "" {
			continue
		}
		sink, err := claim(l.Sink, sinkFlags)
		if err != nil {
			return err
		}
		a.files[l.Sink] = sink
	}
	return nil
}

// join joins one interface to its tap. Frames are redirected before the addresses
// go, so that at no time the host answers for the guest.
func (s *session) join(ctx context.Context, link Link) error {
	iface, tap, err := s.pair(link)
	if err != nil {
		return err
	}
	for _, name := range []string{link.Tap, link.Interface} {
		if err := s.disableIPv6(ctx, name); err != nil {
			return err
		}
	}
	err = s.step(ctx, "set MTU of", link.Tap, func() error { return s.nl.LinkSetMTU(tap, link.NIC.MTU) })
	if err != nil {
		return err
	}
	for _, l := range []netlink.Link{tap, iface} {
		err := s.step(ctx, "set MAC of", l.Attrs().Name, func() error { return s.setMAC(l, link.NIC.MAC) })
		if err != nil {
			return err
		}
	}
	err = s.step(ctx, "set up", link.Interface, func() error { return s.nl.LinkSetUp(iface) })
	if err != nil {
		return err
	}
	if link.Sink != "" {
		if err := s.addSink(ctx, link, iface, tap); err != nil {
			return err
		}
	}
	if err := s.redirect(ctx, iface, tap); err != nil {
		return err
	}
	if err := s.release(ctx, link, tap, iface); err != nil {
		return err
	}
	return s.flush(ctx, iface)
}

// pair finds both ends, and refuses what is not the interface that Read saw.
func (s *session) pair(link Link) (iface, tap netlink.Link, err error) {
	if iface, err = s.link(link.Interface); err != nil {
		return nil, nil, err
	}
	a := iface.Attrs()
	if a.Index != link.Found.Index {
		return nil, nil, fmt.Errorf("interface %s: index %d was read and is %d now: %w",
			link.Interface, link.Found.Index, a.Index, errdefs.ErrFailedPrecondition)
	}
	if a.MTU < link.NIC.MTU {
		return nil, nil, fmt.Errorf("interface %s: its MTU is %d, the guest's is %d: %w",
			link.Interface, a.MTU, link.NIC.MTU, errdefs.ErrFailedPrecondition)
	}
	tap, err = s.link(link.Tap)
	return iface, tap, err
}

// setMAC changes the address where it differs. Most drivers do so while the link is
// up; for the others it goes down and up again.
func (s *session) setMAC(l netlink.Link, mac string) error {
	want, err := net.ParseMAC(mac)
	if err != nil {
		return fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	if slices.Equal(l.Attrs().HardwareAddr, want) {
		return nil
	}
	err = s.nl.LinkSetHardwareAddr(l, want)
	if !errors.Is(err, unix.EBUSY) || l.Attrs().RawFlags&unix.IFF_UP == 0 {
		return err
	}
	if err := s.nl.LinkSetDown(l); err != nil {
		return err
	}
	return errors.Join(s.nl.LinkSetHardwareAddr(l, want), s.nl.LinkSetUp(l))
}

// flush takes routes and addresses off an interface, the newest first: a primary
// address would take its secondaries along.
// Like: ip route flush dev $iface; ip addr flush dev $iface
func (s *session) flush(ctx context.Context, l netlink.Link) error {
	name, index := l.Attrs().Name, l.Attrs().Index
	routes, err := s.routes(l)
	if err != nil {
		return fmt.Errorf("list routes of %s: %w", name, err)
	}
	for _, r := range slices.Backward(routes) {
		if kernelMade(r) {
			continue
		}
		err := s.step(ctx, "remove route from", name, func() error { return ignoreMissing(s.nl.RouteDel(r.netlink(index))) })
		if err != nil {
			return err
		}
	}
	addresses, err := s.addresses(l)
	if err != nil {
		return fmt.Errorf("list addresses of %s: %w", name, err)
	}
	for _, a := range slices.Backward(addresses) {
		err := s.step(ctx, "remove address from", name, func() error { return ignoreMissing(s.nl.AddrDel(l, a.netlink())) })
		if err != nil {
			return err
		}
	}
	return nil
}

// kernelMade routes go and come back with their address, or with the link.
func kernelMade(r Route) bool { return r.Protocol == unix.RTPROT_KERNEL }

func closeAll(files []*os.File) (err error) {
	for _, f := range files {
		if e := f.Close(); e != nil && !errors.Is(e, os.ErrClosed) {
			err = errors.Join(err, e)
		}
	}
	return err
}
