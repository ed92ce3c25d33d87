package network

import (
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Found is an interface as Read saw it, exact enough to be put back.
type Found struct {
	Index     int               `json:"index"` // tells it from a later one of the same name
	MAC       string            `json:"mac"`
	MTU       int               `json:"mtu"`
	Up        bool              `json:"up"`
	Addresses []Address         `json:"addresses,omitempty"` // as listed: primaries first
	Routes    []Route           `json:"routes,omitempty"`
	IPv6      map[string]string `json:"ipv6,omitempty"` // sysctl name to value
}

// Address of an interface, with everything that adding it again needs.
type Address struct {
	Prefix    netip.Prefix `json:"prefix"`
	Peer      netip.Prefix `json:"peer,omitzero"`
	Broadcast netip.Addr   `json:"broadcast,omitzero"`
	Label     string       `json:"label,omitempty"`
	Scope     int          `json:"scope,omitempty"`
	Flags     int          `json:"flags,omitempty"`
	Valid     int          `json:"valid,omitempty"` // seconds; 0 for ever
	Preferred int          `json:"preferred,omitempty"`
}

// Route of an interface, in any table but the local one.
type Route struct {
	Destination netip.Prefix `json:"destination"`
	Gateway     netip.Addr   `json:"gateway,omitzero"`
	Source      netip.Addr   `json:"source,omitzero"`
	Table       int          `json:"table"`
	Protocol    int          `json:"protocol"`
	Type        int          `json:"type"`
	Scope       int          `json:"scope"`
	Priority    int          `json:"priority,omitempty"`
	TOS         int          `json:"tos,omitempty"`
	OnLink      bool         `json:"onLink,omitempty"`
	MTU         int          `json:"mtu,omitempty"`
	AdvMSS      int          `json:"advmss,omitempty"`
}

// keptFlags are those that a caller of the kernel chooses; the others report state.
const keptFlags = unix.IFA_F_NODAD | unix.IFA_F_HOMEADDRESS | unix.IFA_F_MANAGETEMPADDR |
	unix.IFA_F_NOPREFIXROUTE | unix.IFA_F_MCAUTOJOIN

func (s *session) addresses(l netlink.Link) ([]Address, error) {
	list, err := dump(func() ([]netlink.Addr, error) {
		return s.nl.AddrList(l, netlink.FAMILY_ALL)
	})
	if err != nil {
		return nil, err
	}
	var out []Address
	for _, a := range list {
		f := Address{Prefix: prefix(a.IPNet), Label: a.Label, Scope: a.Scope, Flags: a.Flags & keptFlags}
		if a.Peer != nil && !a.Peer.IP.Equal(a.IP) {
			f.Peer = prefix(a.Peer)
		}
		f.Broadcast, _ = netip.AddrFromSlice(a.Broadcast)
		if a.Flags&unix.IFA_F_PERMANENT == 0 {
			f.Valid, f.Preferred = a.ValidLft, a.PreferedLft
		}
		out = append(out, f)
	}
	return out, nil
}

func (a Address) netlink() *netlink.Addr {
	out := &netlink.Addr{IPNet: ipNet(a.Prefix), Label: a.Label, Scope: a.Scope, Flags: a.Flags,
		ValidLft: a.Valid, PreferedLft: a.Preferred}
	if a.Peer.IsValid() {
		out.Peer = ipNet(a.Peer)
	}
	if a.Prefix.Addr().Is4() {
		out.Broadcast = net.IPv4zero // the library's word for none; nil would invent one
		if a.Broadcast.IsValid() {
			out.Broadcast = a.Broadcast.AsSlice()
		}
	}
	return out
}

// key is what makes an address the same one; lifetimes run on and flags settle.
func (a Address) key() [2]netip.Prefix { return [2]netip.Prefix{a.Prefix, a.Peer} }

func readRoute(r netlink.Route) Route {
	f := Route{Table: r.Table, Protocol: int(r.Protocol), Type: r.Type, Scope: int(r.Scope),
		Priority: r.Priority, TOS: r.Tos, OnLink: r.Flags&unix.RTNH_F_ONLINK != 0,
		MTU: r.MTU, AdvMSS: r.AdvMSS}
	switch {
	case r.Dst != nil:
		f.Destination = prefix(r.Dst)
	case r.Family == unix.AF_INET6:
		f.Destination = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	default:
		f.Destination = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	f.Gateway = addr(r.Gw)
	if via, ok := r.Via.(*netlink.Via); ok {
		f.Gateway = addr(via.Addr)
	}
	f.Source = addr(r.Src)
	return f
}

func (r Route) netlink(index int) *netlink.Route {
	out := &netlink.Route{LinkIndex: index, Dst: ipNet(r.Destination), Table: r.Table,
		Protocol: netlink.RouteProtocol(r.Protocol), Type: r.Type, Scope: netlink.Scope(r.Scope),
		Priority: r.Priority, Tos: r.TOS, MTU: r.MTU, AdvMSS: r.AdvMSS}
	switch {
	case !r.Gateway.IsValid():
	case r.Gateway.Is4() == r.Destination.Addr().Is4():
		out.Gw = r.Gateway.AsSlice()
	default:
		out.Via = &netlink.Via{AddrFamily: unix.AF_INET6, Addr: r.Gateway.AsSlice()}
	}
	if r.Source.IsValid() {
		out.Src = r.Source.AsSlice()
	}
	if r.OnLink {
		out.Flags = unix.RTNH_F_ONLINK
	}
	return out
}

func prefix(n *net.IPNet) netip.Prefix {
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(addr(n.IP), ones)
}

func addr(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
