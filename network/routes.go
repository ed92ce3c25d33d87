package network

import (
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// routes lists the routes of an interface in every table but the local one. The kernel shows
// equal IPv6 routes by several gateways as one; each gateway is a route of its own here, as it
// can be added and removed. An IPv4 route by several gateways is one object, which may use other
// interfaces too: it is refused, because no guest could get its part.
func (s *session) routes(l netlink.Link) ([]Route, error) {
	list, err := dump(func() ([]netlink.Route, error) {
		filter := &netlink.Route{Table: unix.RT_TABLE_UNSPEC}
		return s.nl.RouteListFiltered(netlink.FAMILY_ALL, filter, netlink.RT_FILTER_TABLE)
	})
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
			if hop.LinkIndex != index {
				continue
			}
			if r.Family != unix.AF_INET6 {
				return nil, fmt.Errorf("route to %s has several gateways, which no guest can be given: make it several routes with a metric each: %w",
					readRoute(r).Destination, errdefs.ErrFailedPrecondition)
			}
			one := r
			one.LinkIndex, one.Gw, one.Via, one.Flags, one.MultiPath = index, hop.Gw, hop.Via, r.Flags|hop.Flags, nil
			out = append(out, readRoute(one))
		}
	}
	return out, nil
}
