package network

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Detach deletes the taps, which cuts off a process that still holds one, and makes each interface again what Read
// found. It needs the links alone, and may be called from any state in between and again after success. What is gone
// counts as done: a namespace, interface or tap, and so does one that another owner has attached since.
func Detach(ctx context.Context, netnsPath string, links []Link) error {
	s, err := lockedSession(ctx, netnsPath)
	if errdefs.IsNotFound(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("detach network: %w", err)
	}
	defer s.close()
	return s.detach(ctx, links)
}

// detach does all it can, and fences first.
func (s *session) detach(ctx context.Context, links []Link) error {
	err := s.deleteTaps(ctx, links)
	for _, l := range slices.Backward(links) {
		err = errors.Join(err, s.restore(ctx, l))
	}
	if err != nil {
		return fmt.Errorf("detach network: %w", err)
	}
	return nil
}

func (s *session) deleteTaps(ctx context.Context, links []Link) (err error) {
	for _, l := range links {
		for _, tap := range []string{l.Tap, l.Sink} {
			if tap != "" {
				err = errors.Join(err, s.step(ctx, "delete tap", tap, func() error { return s.deleteTapOf(l, tap) }))
			}
		}
	}
	return err
}

// restore makes an interface again what Read found. Its ingress opens last, when
// everything that may answer is back.
func (s *session) restore(ctx context.Context, link Link) error {
	l, err := s.link(link.Interface)
	if err != nil {
		return ignoreMissing(err)
	}
	if l.Attrs().Index != link.Found.Index {
		return nil // another one of that name
	}
	if taken, err := s.takenOver(link, l); err != nil || taken {
		return err
	}
	name, found := link.Interface, link.Found
	errs := []error{
		s.step(ctx, "restore MAC of", name, func() error { return s.setMAC(l, found.MAC) }),
	}
	switch up := l.Attrs().RawFlags&unix.IFF_UP != 0; {
	case !found.Up:
		errs = append(errs, s.step(ctx, "set down", name, func() error { return s.nl.LinkSetDown(l) }))
	case !up: // as Leave does
		errs = append(errs, s.step(ctx, "set up", name, func() error { return s.nl.LinkSetUp(l) }))
	}
	for _, q := range silentSysctls {
		value, ok := found.IPv6[q.name]
		if !ok {
			continue
		}
		errs = append(errs, s.step(ctx, "restore "+q.name+" of", name, func() error {
			return s.writeSysctl(name, q.name, value)
		}))
	}
	errs = append(errs,
		s.restoreAddresses(ctx, l, found.Addresses),
		s.restoreRoutes(ctx, l, found.Routes),
		s.step(ctx, "remove ingress qdisc from", name, func() error { return s.unredirect(l) }))
	return errors.Join(errs...)
}

// restoreAddresses stops at the first that it cannot add: the order decides which
// IPv4 address is the primary one of its network, and so what routes prefer.
func (s *session) restoreAddresses(ctx context.Context, l netlink.Link, want []Address) error {
	name := l.Attrs().Name
	now, err := s.addresses(l)
	if err != nil {
		return fmt.Errorf("list addresses of %s: %w", name, err)
	}
	remove, add := addressChanges(now, want)
	for _, a := range remove {
		err := s.step(ctx, "remove address from", name, func() error { return ignoreMissing(s.nl.AddrDel(l, a.netlink())) })
		if err != nil {
			return err
		}
	}
	for _, a := range add {
		err := s.step(ctx, "restore address of", name, func() error { return s.addAddress(l, a) })
		if err != nil {
			return err
		}
	}
	return nil
}

// addAddress skips duplicate address detection: the address was in use here until
// now, and a route cannot name a tentative one as its source.
func (s *session) addAddress(l netlink.Link, a Address) error {
	sure := a
	if a.Prefix.Addr().Is6() {
		sure.Flags |= unix.IFA_F_NODAD
	}
	err := exists(s.nl.AddrAdd(l, sure.netlink()))
	if err != nil || sure.Flags == a.Flags {
		return err
	}
	return s.nl.AddrReplace(l, a.netlink())
}

// addressChanges says how now becomes want. IPv4 addresses stay as far as both lists agree from the start. The kernel
// lists IPv6 ones newest first, so they are added from the end.
func addressChanges(now, want []Address) (remove, add []Address) {
	now4, now6 := families(now)
	want4, want6 := families(want)
	same := 0
	for same < min(len(now4), len(want4)) && now4[same].key() == want4[same].key() {
		same++
	}
	for _, a := range slices.Backward(now4[same:]) {
		remove = append(remove, a)
	}
	add = append(add, want4[same:]...)
	has := func(list []Address, a Address) bool {
		return slices.ContainsFunc(list, func(b Address) bool { return a.key() == b.key() })
	}
	for _, a := range now6 {
		if !has(want6, a) {
			remove = append(remove, a)
		}
	}
	for _, a := range slices.Backward(want6) {
		if !has(now6, a) {
			add = append(add, a)
		}
	}
	return remove, add
}

func families(all []Address) (v4, v6 []Address) {
	for _, a := range all {
		if a.Prefix.Addr().Is4() {
			v4 = append(v4, a)
		} else {
			v6 = append(v6, a)
		}
	}
	return v4, v6
}

// restoreRoutes runs after the addresses are back, which has made the kernel's own
// routes again, even one that the plugin had removed.
func (s *session) restoreRoutes(ctx context.Context, l netlink.Link, want []Route) (err error) {
	name, index := l.Attrs().Name, l.Attrs().Index
	now, err := s.routes(l)
	if err != nil {
		return fmt.Errorf("list routes of %s: %w", name, err)
	}
	for _, r := range now {
		if !slices.Contains(want, r) {
			err = errors.Join(err, s.step(ctx, "remove route from", name, func() error {
				return ignoreMissing(s.nl.RouteDel(r.netlink(index)))
			}))
		}
	}
	for _, r := range onLinkFirst(want) {
		if !slices.Contains(now, r) {
			err = errors.Join(err, s.step(ctx, "restore route of", name, func() error {
				return exists(s.nl.RouteAppend(r.netlink(index))) // there may be one by another gateway or NIC
			}))
		}
	}
	return err
}

// onLinkFirst sorts routes so that each gateway can be reached when its route is made.
func onLinkFirst(routes []Route) []Route {
	out := slices.Clone(routes)
	slices.SortStableFunc(out, func(a, b Route) int {
		switch {
		case a.Gateway.IsValid() == b.Gateway.IsValid():
			return 0
		case a.Gateway.IsValid():
			return 1
		}
		return -1
	})
	return out
}

func exists(err error) error {
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}
