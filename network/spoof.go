package network

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"

	"godwit.dev/godwit/network/dhcp"
)

// Values of Link.Spoof.
const (
	SpoofAllow = "allow" // all frames of the guest go out
	SpoofDeny  = "deny"  // only those that name the MAC and the addresses of its NIC as their source
)

// verdict is a filter at the tap of a guest that may not spoof. The first one that matches decides. What passes goes to
// the interface. What does not goes to the kernel of the namespace, which has no address there and no route, and ends
// there. So does what no filter matches.
type verdict struct {
	keys []netlink.TcU32Key
	pass bool
}

// Places in a frame, from its network header on. The ethernet header lies before it: the last two
// bytes of the destination, six of the source, two of the type.
const (
	atMAC      = -8 // the first four bytes of the source
	atMACType  = -4 // the other two, and the type
	atSource4  = 12 // of IPv4
	atHardware = 8  // ARP: the sender's MAC, its first four bytes
	atSender   = 12 // ARP: the rest of the MAC, the first half of the sender's address
	atSender2  = 16 // ARP: the other half
	atAsked    = 24 // ARP: the target's address
)

// Messages of ICMPv6 that only a router sends, and the answer to a neighbour solicitation.
const (
	neighborAdvert = 136
	routerRedirect = 137
)

// verdicts of a link, in order.
func verdicts(link Link) ([]verdict, error) {
	mac, err := net.ParseMAC(link.NIC.MAC)
	if err != nil || len(mac) != 6 {
		return nil, fmt.Errorf("NIC %s: MAC %q: six bytes wanted: %w", link.NIC.ID, link.NIC.MAC, errdefs.ErrInvalidArgument)
	}
	if len(link.NIC.Addresses) == 0 { // the guest gets addresses that are not known here
		return []verdict{{pass: true, keys: []netlink.TcU32Key{
			key(atMAC, binary.BigEndian.Uint32(mac), 0xffffffff), key(atMACType, uint32(binary.BigEndian.Uint16(mac[4:]))<<16,
				0xffff<<16),
		}}}, nil
	}
	var v4, v6 []netip.Addr
	for _, p := range link.NIC.Addresses {
		if a := p.Addr().Unmap(); a.Is4() {
			v4 = append(v4, a)
		} else {
			v6 = append(v6, a)
		}
	}
	return append(append(verdicts4(mac, v4), verdictsARP(mac, v4)...), verdicts6(mac, v6, routersOf(link, v6))...), nil
}

// routersOf are the gateways that have an address of the link, which could be the guest's by its form.
func routersOf(link Link, own []netip.Addr) (all []netip.Addr) {
	for _, r := range link.NIC.Routes {
		if g := r.Gateway; g.Is6() && g.IsLinkLocalUnicast() && !slices.Contains(own, g) && !slices.Contains(all, g) {
			all = append(all, g)
		}
	}
	return all
}

// from are the keys of a frame of that type from the guest's MAC.
func from(mac net.HardwareAddr, kind uint32, more ...netlink.TcU32Key) []netlink.TcU32Key {
	return append([]netlink.TcU32Key{
		key(atMAC, binary.BigEndian.Uint32(mac), 0xffffffff),
		key(atMACType, uint32(binary.BigEndian.Uint16(mac[4:]))<<16|kind, 0xffffffff),
	}, more...)
}

// verdicts4 pass the guest's addresses, and questions for one by DHCP, which come from none.
func verdicts4(mac net.HardwareAddr, own []netip.Addr) []verdict {
	const none = 0
	out := []verdict{{pass: true, keys: from(mac, etherIPv4, key(atSource4, none, 0xffffffff),
		key(atVersion, 0x45<<24, 0xff<<24), isUDP,
		key(atPorts, dhcp.ClientPort<<16|dhcp.ServerPort, 0xffffffff))}}
	for _, a := range own {
		out = append(out, verdict{pass: true, keys: from(mac, etherIPv4, key(atSource4, word(a), 0xffffffff))})
	}
	return out
}

// verdictsARP pass what speaks for the guest's addresses, and the probes of RFC 5227 for them, which
// speak for none: a probe for another's address takes it from who is probing for it. A RARP tells
// switches where the MAC is, and no address: a VMM sends it after a load.
func verdictsARP(mac net.HardwareAddr, own []netip.Addr) (out []verdict) {
	sender := func(kind uint32, a netip.Addr, more ...netlink.TcU32Key) {
		out = append(out, verdict{pass: true, keys: from(mac, kind, append([]netlink.TcU32Key{
			key(atHardware, binary.BigEndian.Uint32(mac), 0xffffffff),
			key(atSender, uint32(binary.BigEndian.Uint16(mac[4:]))<<16|word(a)>>16, 0xffffffff),
			key(atSender2, word(a)<<16, 0xffff<<16)}, more...)...)})
	}
	for _, a := range own {
		sender(etherARP, a)
		sender(etherARP, netip.IPv4Unspecified(), key(atAsked, word(a), 0xffffffff))
	}
	sender(etherRARP, netip.IPv4Unspecified())
	return out
}

func word(a netip.Addr) uint32 { return binary.BigEndian.Uint32(a.AsSlice()) }

// verdicts6 pass the guest's addresses and those of the link, which it makes itself, but those of
// routers. Only for them may it answer. From no address come duplicate address detection, for them
// alone, and reports of multicast groups.
func verdicts6(mac net.HardwareAddr, own, routers []netip.Addr) (out []verdict) {
	icmp := func(kind uint32, more ...netlink.TcU32Key) []netlink.TcU32Key {
		return from(mac, etherIPv6, append([]netlink.TcU32Key{isICMP6, key(atPayload, kind<<24, 0xff<<24)}, more...)...)
	}
	mine := func(at int32) (all [][]netlink.TcU32Key) {
		for _, a := range own {
			all = append(all, address6(at, a))
		}
		return append(all, []netlink.TcU32Key{key(at, 0xfe80<<16, 0xffc0<<16)})
	}
	out = append(out, verdict{keys: icmp(dhcp.RouterAdvert)}, verdict{keys: icmp(routerRedirect)})
	// Neighbour discovery has a hop limit of 255. Only an attacker puts it after an extension header (RFC 6980), where no
	// filter would find it.
	for _, next := range extensions {
		out = append(out, verdict{keys: from(mac, etherIPv6, key(atNext, next<<8|255, 0xffff))})
	}
	none := address6(atSource, netip.IPv6Unspecified())
	for _, r := range routers {
		out = append(out, verdict{keys: from(mac, etherIPv6, address6(atSource, r)...)},
			verdict{keys: icmp(neighborAdvert, address6(atTarget, r)...)},
			verdict{keys: icmp(dhcp.NeighborSolicit, append(address6(atTarget, r), none...)...)})
	}
	for _, source := range mine(atSource) {
		for _, target := range mine(atTarget) {
			out = append(out, verdict{pass: true, keys: icmp(neighborAdvert, append(target, source...)...)})
		}
	}
	out = append(out, verdict{keys: icmp(neighborAdvert)})
	for _, source := range mine(atSource) {
		out = append(out, verdict{pass: true, keys: from(mac, etherIPv6, source...)})
	}
	for _, target := range mine(atTarget) {
		out = append(out, verdict{pass: true, keys: icmp(dhcp.NeighborSolicit, append(target, none...)...)})
	}
	const hopByHop, once = 0, 1 // of listener reports (RFC 3810): the extension header, and the hop limit
	return append(out, verdict{pass: true,
		keys: from(mac, etherIPv6, append([]netlink.TcU32Key{key(atNext, hopByHop<<8|once, 0xffff)}, none...)...)})
}

func address6(at int32, a netip.Addr) (keys []netlink.TcU32Key) {
	b := a.As16()
	for i := 0; i < len(b); i += 4 {
		keys = append(keys, key(at+int32(i), binary.BigEndian.Uint32(b[i:]), 0xffffffff))
	}
	return keys
}

// release lets what the guest sends go out: all of it, or what does not spoof.
func (s *session) release(ctx context.Context, link Link, tap, iface netlink.Link) error {
	if link.Spoof != SpoofDeny {
		return s.redirect(ctx, tap, iface)
	}
	all, err := verdicts(link)
	if err != nil {
		return err
	}
	for _, v := range all {
		to := iface
		if !v.pass {
			to = nil
		}
		if err := s.redirectSome(ctx, tap, to, v.keys); err != nil {
			return err
		}
	}
	return nil
}
