package network

import (
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// routes lists the routes of an interface in every table but the local one. The kernel shows equal IPv6 routes by
// several gateways as one. Each gateway is a route of its own here, as it can be added and removed. An IPv4 route by
// several gateways is one object, which may use other interfaces too, and is no route of an interface.
func (s *session) routes(l netlink.Link) ([]Route, error) {
	list, err := s.allRoutes()
	if err != nil {
		return nil, err
	}
	index := l.Attrs().Index
	var out []Route
	for _, r := range list {
		if r.Table == unix.RT_TABLE_LOCAL { // the kernel's own, made with each address
			continue
		}
		if r.LinkIndex == index && len(r.MultiPath) == 0 {
			out = append(out, readRoute(r))
			continue
		}
		for _, hop := range r.MultiPath {
			if hop.LinkIndex != index || r.Family != unix.AF_INET6 {
				continue
			}
			one := r
			one.LinkIndex, one.Gw, one.Via, one.Flags, one.MultiPath = index, hop.Gw, hop.Via, r.Flags|hop.Flags, nil
			out = append(out, readRoute(one))
		}
	}
	return out, nil
}

// allRoutes lists those of the namespace.
func (s *session) allRoutes() ([]netlink.Route, error) {
	return dump(func() ([]netlink.Route, error) {
		filter := &netlink.Route{Table: unix.RT_TABLE_UNSPEC}
		return s.nl.RouteListFiltered(netlink.FAMILY_ALL, filter, netlink.RT_FILTER_TABLE)
	})
}

// refuseMultipath refuses an interface by which the guest would have to have its part of an IPv4 route by
// several gateways.
func (s *session) refuseMultipath(l netlink.Link) error {
	list, err := s.allRoutes()
	if err != nil {
		return err
	}
	for _, r := range list {
		route := readRoute(r)
		if r.Family == unix.AF_INET6 || !forGuest(route) {
			continue
		}
		for _, hop := range r.MultiPath {
			if hop.LinkIndex == l.Attrs().Index {
				return fmt.Errorf("route to %s has several gateways, which no guest can be given: make it several routes with a "+
					"metric each: %w",
					route.Destination, errdefs.ErrFailedPrecondition)
			}
		}
	}
	return nil
}
