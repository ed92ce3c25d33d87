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
	replaced := false // a route that may have been in the place of the kernel's
	for _, r := range have {
		replaced = replaced || r.Protocol != unix.RTPROT_KERNEL
		if r.Protocol == unix.RTPROT_KERNEL && !slices.ContainsFunc(want, func(w *netlink.Route) bool {
			return inPlaceOf(w, r)
		}) {
			continue
		}
		if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("remove route %s: %w", r, err)
		}
	}
	if replaced {
		if err := connect(link, want); err != nil {
			return fmt.Errorf("reach the networks of the addresses: %w", err)
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

// inPlaceOf reports whether a route is meant to replace the one that the kernel has made for an
// address: by a gateway, as the plugin ptp does, or with a source or sizes of its own. The host's
// kernel had no other of that destination and metric, or it would be asked first.
func inPlaceOf(want *netlink.Route, kernel netlink.Route) bool {
	return kernel.Dst != nil && want.Dst.String() == kernel.Dst.String() && want.Priority == kernel.Priority
}

// connected6 is the metric of the route that the kernel makes for an IPv6 address (IP6_RT_PRIO_ADDRCONF).
const connected6 = 256

// connect makes the kernel's route for each address again that has none, since another one was in
// its place, unless another one is to be.
func connect(link netlink.Link, want []*netlink.Route) error {
	addresses, err := whole(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return err
	}
	have, err := routesOf(link)
	if err != nil {
		return err
	}
	for _, a := range addresses {
		ones, bits := a.Mask.Size()
		if ones == bits || a.IP.IsLinkLocalUnicast() || a.Flags&unix.IFA_F_NOPREFIXROUTE != 0 {
			continue
		}
		own := netlink.Route{
			LinkIndex: link.Attrs().Index, Dst: &net.IPNet{IP: a.IP.Mask(a.Mask), Mask: a.Mask}, Protocol: unix.RTPROT_KERNEL,
		}
		if bits == 32 {
			own.Scope, own.Src = unix.RT_SCOPE_LINK, a.IP
		} else {
			own.Priority = connected6
		}
		if slices.ContainsFunc(want, func(w *netlink.Route) bool { return inPlaceOf(w, own) }) ||
			slices.ContainsFunc(have, func(h netlink.Route) bool { return inPlaceOf(&own, h) }) {
			continue
		}
		if err := netlink.RouteAdd(&own); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("add route %s: %w", own, err)
		}
		have = append(have, own)
	}
	return nil
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
