package network

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/api/spec"
)

// Read lists the interfaces that a CNI plugin made in the namespace at netnsPath, in
// the order of their making: every one but loopback that is up or has addresses. A
// namespace with loopback alone gives none. It changes nothing; slots are left 0.
//
// One that carries no ethernet cannot reach a VM and is an error, as is one whose
// traffic already goes somewhere else.
func Read(ctx context.Context, netnsPath string) ([]Link, error) {
	s, err := openSession(netnsPath)
	if err != nil {
		return nil, err
	}
	defer s.close()
	all, err := dump(s.nl.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces of %s: %w", netnsPath, err)
	}
	slices.SortFunc(all, func(a, b netlink.Link) int { return a.Attrs().Index - b.Attrs().Index })
	names := map[string]bool{}
	for _, l := range all {
		names[l.Attrs().Name] = true
	}
	var links []Link
	tap := 0
	for _, l := range all {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		link, ok, err := s.read(l)
		if err != nil {
			return nil, fmt.Errorf("read interface %s of %s: %w", l.Attrs().Name, netnsPath, err)
		} else if !ok {
			continue
		}
		for names[fmt.Sprintf("tap%d", tap)] {
			tap++
		}
		link.Tap = fmt.Sprintf("tap%d", tap)
		link.NIC.ID = fmt.Sprintf("net%d", len(links))
		links = append(links, link)
		tap++
	}
	return links, nil
}

// read describes one interface; ok is false for one that no VM needs.
func (s *session) read(l netlink.Link) (_ Link, ok bool, err error) {
	a := l.Attrs()
	_, ours := parseAlias(a.Alias)
	if a.EncapType == "loopback" || a.MasterIndex != 0 || ours {
		return Link{}, false, nil
	}
	up := a.RawFlags&unix.IFF_UP != 0
	addresses, err := s.addresses(l)
	if err != nil || !up && len(addresses) == 0 {
		return Link{}, false, err
	}
	if a.EncapType != "ether" {
		return Link{}, false, fmt.Errorf("it carries %s, a VM needs ethernet: %w",
			a.EncapType, errdefs.ErrFailedPrecondition)
	}
	if err := s.unredirected(l); err != nil {
		return Link{}, false, err
	}
	if err := s.refuseMultipath(l); err != nil {
		return Link{}, false, err
	}
	routes, err := s.routes(l)
	if err != nil {
		return Link{}, false, err
	}
	sysctls, err := s.readSysctls(a.Name)
	if err != nil {
		return Link{}, false, err
	}
	link := Link{
		Interface: a.Name,
		NIC: spec.NIC{Name: a.Name, MAC: a.HardwareAddr.String(), MTU: a.MTU,
			Addresses: guestAddresses(addresses), Routes: guestRoutes(routes)},
		Found: Found{Index: a.Index, MAC: a.HardwareAddr.String(), MTU: a.MTU, Up: up,
			Addresses: addresses, Routes: routes, IPv6: sysctls},
	}
	return link, true, nil
}

// guestAddresses leaves out what a guest makes for itself.
func guestAddresses(found []Address) []netip.Prefix {
	var out []netip.Prefix
	for _, a := range found {
		if a.Scope != unix.RT_SCOPE_LINK && !a.Prefix.Addr().IsLinkLocalUnicast() {
			out = append(out, a.Prefix)
		}
	}
	return out
}

// usual6 is the metric that the kernel gives an IPv6 route without one (IP6_RT_PRIO_USER).
const usual6 = 1024

// guestRoutes are those that the guest gets; those on the link come first, because a gateway may need them. Of several
// routes to one destination the preferred one, of the lowest metric, comes first.
func guestRoutes(found []Route) []spec.Route {
	var out []spec.Route
	for _, r := range found {
		dst := r.Destination
		if !forGuest(r) {
			continue
		}
		g := spec.Route{Destination: dst, Gateway: r.Gateway, Source: r.Source,
			Scope: r.Scope, IPv6: dst.Addr().Is6(),
			Metric: r.Priority, OnLink: r.OnLink, MTU: r.MTU, AdvMSS: r.AdvMSS}
		if g.IPv6 && g.Metric == usual6 { // the guest's kernel gives it, too
			g.Metric = 0
		}
		if dst.Bits() == 0 {
			g.Destination = netip.Prefix{}
		}
		out = append(out, g)
	}
	slices.SortStableFunc(out, func(a, b spec.Route) int {
		return cmp.Or(b.Scope-a.Scope, a.Metric-b.Metric, strings.Compare(gateway(a), gateway(b)))
	})
	return out
}

// forGuest tells whether the guest gets the route: it is of the main table and follows from no address.
func forGuest(r Route) bool {
	dst := r.Destination.Addr()
	return r.Table == unix.RT_TABLE_MAIN && r.Type == unix.RTN_UNICAST &&
		r.Protocol != unix.RTPROT_KERNEL && !(dst.Is6() && dst.IsLinkLocalUnicast())
}

func gateway(r spec.Route) string {
	if !r.Gateway.IsValid() {
		return ""
	}
	return r.Gateway.String()
}
