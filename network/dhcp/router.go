package dhcp

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"

	"github.com/insomniacslk/dhcp/rfc1035label"

	"godwit.dev/godwit/api/spec"
)

// Types of ICMPv6 messages.
const (
	RouterSolicit     = 133
	RouterAdvert      = 134
	NeighborSolicit   = 135
	neighborAdvert    = 136
	ServerPort6       = 547
	ClientPort6       = 546
	protoICMP6        = 58
	etherIPv6         = 0x86dd
	ip6Header         = 40
	neighborSolicited = 0x60 // solicited, override
	isRouter          = 0x80
)

// serverLink is the address that the answers of IPv6 come from: the one that an interface
// with ServerMAC would give itself.
var serverLink = netip.MustParseAddr("fe80::67:77ff:fe64:6863")

// StandIns are the addresses that a Server answers for when a guest asks for their MAC.
func StandIns() netip.Prefix { return netip.PrefixFrom(serverLink, 120).Masked() }

// maxRouters is how many gateways can have a stand-in, whose addresses count up from
// serverLink's.
const maxRouters = 64

var (
	allNodes    = netip.MustParseAddr("ff02::1")
	allNodesMAC = net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}
)

// router is one gateway as the guest is told of it. A guest takes routers' advertisements
// from link-local addresses alone. A gateway that the CNI plugin names by another one
// has a stand-in, whose MAC is the gateway's: packets reach the gateway, and questions
// for the stand-in's MAC are answered here.
type router struct {
	link      netip.Addr       // source of its advertisements
	mac       net.HardwareAddr // nil: the guest finds it by asking the network
	isDefault bool
	routes    []netip.Prefix
}

// routers groups the routes of IPv6 by gateway; those on the link are prefixes, as are
// the networks of the addresses.
func (s *Server) describe6(cfg Config) {
	for _, p := range s.addresses6 {
		if p.Bits() < 128 {
			s.onLink = append(s.onLink, p.Masked())
		}
	}
	at := map[netip.Addr]int{}
	for _, r := range cfg.NIC.Routes {
		if !isRoute6(r) {
			continue
		}
		if !r.Gateway.IsValid() {
			if r.Destination.IsValid() && !slices.Contains(s.onLink, r.Destination.Masked()) {
				s.onLink = append(s.onLink, r.Destination.Masked())
			}
			continue
		}
		i, known := at[r.Gateway]
		if !known {
			gateway, ok := s.router(r.Gateway, cfg.Neighbors)
			if !ok {
				continue
			}
			i = len(s.routers)
			at[r.Gateway] = i
			s.routers = append(s.routers, gateway)
		}
		if !r.Destination.IsValid() || r.Destination.Bits() == 0 {
			s.routers[i].isDefault = true
		} else {
			s.routers[i].routes = append(s.routers[i].routes, r.Destination.Masked())
		}
	}
	if len(s.routers) == 0 { // what is no route still has to be told
		s.routers = []router{{link: serverLink, mac: ServerMAC}}
	}
}

func isRoute6(r spec.Route) bool {
	return r.IPv6 || r.Destination.IsValid() && r.Destination.Addr().Is6()
}

// router of a gateway; false if it cannot be reached by a guest that asks.
func (s *Server) router(gateway netip.Addr, neighbors map[netip.Addr]string) (router, bool) {
	if gateway.IsLinkLocalUnicast() {
		return router{link: gateway}, true
	}
	mac, err := net.ParseMAC(neighbors[gateway])
	if err != nil || len(mac) != 6 || len(s.routers) == maxRouters {
		return router{}, false
	}
	link := serverLink.As16()
	link[15] += byte(len(s.routers))
	return router{link: netip.AddrFrom16(link), mac: mac}, true
}

// Advertisements are those of all routers, for everybody on the link: the guest alone.
func (s *Server) Advertisements() (frames [][]byte) {
	if len(s.addresses6) == 0 {
		return nil
	}
	for _, r := range s.routers {
		src := r.mac
		if src == nil {
			src = ServerMAC // no host learns a MAC from an ethernet header
		}
		frames = append(frames, frame6(src, allNodesMAC, r.link, allNodes, s.advertisement(r)))
	}
	return frames
}

// advertisement of one router (RFC 4861, 4191, 8106): addresses come by DHCPv6 (M, O),
// never by what a guest makes of a prefix.
func (s *Server) advertisement(r router) []byte {
	const flags, forEver = 0xc0, 0xffffffff
	lifetime := uint16(0)
	if r.isDefault {
		lifetime = 0xffff
	}
	m := []byte{RouterAdvert, 0, 0, 0, 64, flags}
	m = binary.BigEndian.AppendUint16(m, lifetime)
	m = append(m, make([]byte, 8)...) // reachable and retransmission times: the guest's own
	if r.mac != nil {
		m = append(append(m, 1, 1), r.mac...)
	}
	m = append(m, 5, 1, 0, 0)
	m = binary.BigEndian.AppendUint32(m, uint32(s.mtu))
	for _, p := range s.onLink {
		m = append(m, 3, 4, byte(p.Bits()), 0x80) // on the link, and nothing to make an address of
		m = binary.BigEndian.AppendUint32(m, forEver)
		m = binary.BigEndian.AppendUint32(m, forEver)
		m = append(append(m, 0, 0, 0, 0), p.Addr().AsSlice()...)
	}
	for _, p := range r.routes {
		m = append(m, 24, 3, byte(p.Bits()), 0)
		m = binary.BigEndian.AppendUint32(m, forEver)
		m = append(m, p.Addr().AsSlice()...)
	}
	if dns := s.dns6[:min(len(s.dns6), maxDNS)]; len(dns) > 0 {
		m = append(m, 25, byte(1+2*len(dns)), 0, 0)
		m = binary.BigEndian.AppendUint32(m, forEver)
		for _, a := range dns {
			m = append(m, a.AsSlice()...)
		}
	}
	for n := len(s.search); n > 0; n-- {
		names := (&rfc1035label.Labels{Labels: s.search[:n]}).ToBytes()
		names = append(names, make([]byte, (8-len(names)%8)%8)...)
		if words := 1 + len(names)/8; words < 256 && ip6Header+len(m)+8*words <= s.packet() {
			m = append(m, 31, byte(words), 0, 0)
			m = binary.BigEndian.AppendUint32(m, forEver)
			return append(m, names...)
		}
	}
	return m
}

// neighbor answers the question for a stand-in's MAC; nil: it is not one of ours.
func (s *Server) neighbor(from netip.Addr, target netip.Addr) []byte {
	i := slices.IndexFunc(s.routers, func(r router) bool { return r.link == target && r.mac != nil })
	mac := ServerMAC
	switch {
	case i >= 0:
		mac = s.routers[i].mac
	case target != serverLink:
		return nil
	}
	m := []byte{neighborAdvert, 0, 0, 0, neighborSolicited | isRouter, 0, 0, 0}
	m = append(m, target.AsSlice()...)
	m = append(append(m, 2, 1), mac...)
	if from.IsUnspecified() { // it looks for a double of an address that it wants itself
		m[4] &^= 0x40
		return frame6(mac, allNodesMAC, target, allNodes, m)
	}
	return frame6(mac, s.mac, target, from, m)
}
