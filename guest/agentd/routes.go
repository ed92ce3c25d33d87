package agentd

import (
	"errors"
	"fmt"
	"net"
	"slices"

	agentv1 "godwit.dev/godwit/api/agent/lean"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// setRoutes replaces the routes of a NIC that are not the kernel's own. Routes of other NICs stay,
// also those to the same destination.
func setRoutes(link netlink.Link, routes []*agentv1.Route) error {
	var want []*netlink.Route
	for _, r := range routes {
		route, err := parseRoute(link, r)
		if err != nil {
			return err
		}
		want = append(want, route)
	}
	have, err := routesOf(link)
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	for _, r := range have {
		if r.Protocol == unix.RTPROT_KERNEL && !slices.ContainsFunc(want, func(w *netlink.Route) bool { return inPlaceOf(w, r) }) {
			continue
		}
		if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("remove route %s: %w", r, err)
		}
	}
	// Routes on the link first: the gateways of the others are reached by them.
	for _, direct := range []bool{true, false} {
		for _, r := range want {
			if (r.Gw == nil && r.Via == nil) != direct {
				continue
			}
			// A route of the same metric by another NIC stays, so this one is appended to it.
			if err := netlink.RouteAppend(r); err != nil && !errors.Is(err, unix.EEXIST) {
				return fmt.Errorf("add route %s: %w", r, err)
			}
		}
	}
	return nil
}

// inPlaceOf reports whether a route by a gateway is meant to replace the one that the kernel has made
// for an address: the plugin ptp does so.
func inPlaceOf(want *netlink.Route, kernel netlink.Route) bool {
	return (want.Gw != nil || want.Via != nil) && kernel.Dst != nil &&
		want.Dst.String() == kernel.Dst.String() && want.Priority == kernel.Priority
}

// routesOf lists the routes of a NIC in the main table. The kernel shows equal IPv6 routes by
// several NICs as one; each is a route of its own.
func routesOf(link netlink.Link) (out []netlink.Route, err error) {
	all, err := whole(func() ([]netlink.Route, error) { return netlink.RouteList(nil, netlink.FAMILY_ALL) })
	for _, r := range all {
		if r.LinkIndex == link.Attrs().Index && len(r.MultiPath) == 0 {
			out = append(out, r)
		}
		for _, hop := range r.MultiPath {
			if hop.LinkIndex != link.Attrs().Index || r.Family != unix.AF_INET6 {
				continue
			}
			one := r
			one.LinkIndex, one.Gw, one.Flags, one.MultiPath = hop.LinkIndex, hop.Gw, r.Flags|hop.Flags, nil
			out = append(out, one)
		}
	}
	return out, err
}

func parseRoute(link netlink.Link, r *agentv1.Route) (*netlink.Route, error) {
	bad := func(field, value string) error {
		return fmt.Errorf("route: %s %q: %w", field, value, errdefs.ErrInvalidArgument)
	}
	route := &netlink.Route{
		LinkIndex: link.Attrs().Index, Scope: netlink.Scope(r.Scope), Protocol: unix.RTPROT_STATIC,
		Priority: int(r.Metric), MTU: int(r.Mtu), AdvMSS: int(r.Advmss),
	}
	if r.OnLink {
		route.Flags = unix.RTNH_F_ONLINK
	}
	gateway := net.ParseIP(r.Gateway)
	if r.Gateway != "" && gateway == nil {
		return nil, bad("gateway", r.Gateway)
	}
	if r.Source != "" {
		if route.Src = net.ParseIP(r.Source); route.Src == nil {
			return nil, bad("source", r.Source)
		}
	}
	zero := net.IPv4zero.To4()
	if r.Family == "6" || r.Family == "" && gateway != nil && gateway.To4() == nil {
		zero = net.IPv6zero
	}
	route.Dst = &net.IPNet{IP: zero, Mask: net.CIDRMask(0, 8*len(zero))}
	if r.Destination != "" {
		_, dst, err := net.ParseCIDR(r.Destination)
		if err != nil {
			return nil, bad("destination", r.Destination)
		}
		route.Dst = dst
	}
	switch v4 := route.Dst.IP.To4() != nil; {
	case gateway == nil:
	case v4 && gateway.To4() == nil:
		route.Via = &netlink.Via{AddrFamily: unix.AF_INET6, Addr: gateway}
	case !v4 && gateway.To4() != nil:
		return nil, bad("gateway", r.Gateway)
	default:
		route.Gw = gateway
	}
	return route, nil
}
