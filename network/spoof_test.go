package network

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"godwit.dev/godwit/api/spec"
)

// ip4 is a frame with a UDP datagram.
func ip4(mac net.HardwareAddr, src, dst string, from, to uint16) []byte {
	p := []byte{0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0}
	p = append(append(p, netip.MustParseAddr(src).AsSlice()...), netip.MustParseAddr(dst).AsSlice()...)
	p = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(p, from), to)
	return ethernet(broadcast, mac, etherIPv4, append(p, 0, 12, 0, 0, 1, 2, 3, 4))
}

// ip6 is a frame to all nodes with that next header, hop limit and payload.
func ip6(mac net.HardwareAddr, src string, next, hops byte, payload ...byte) []byte {
	p := binary.BigEndian.AppendUint16([]byte{0x60, 0, 0, 0}, uint16(len(payload)))
	p = append(append(append(p, next, hops), netip.MustParseAddr(src).AsSlice()...), allNodes.AsSlice()...)
	return ethernet(allNodesMAC, mac, etherIPv6, append(p, payload...))
}

// nd is a message of neighbour discovery about a target.
func nd(kind byte, target string) []byte {
	return append([]byte{kind, 0, 0, 0, 0x20, 0, 0, 0}, netip.MustParseAddr(target).AsSlice()...)
}

// spoofFrame is one of a guest's; fine: it does not spoof.
type spoofFrame struct {
	name  string
	frame []byte
	fine  bool
}

// spoofFrames are of a guest with 10.88.0.2, 10.88.0.12 and fd88::2, whose router is fe80::1.
func spoofFrames(own net.HardwareAddr) []spoofFrame {
	other := net.HardwareAddr{2, 0, 0, 0, 0, 9}
	addr := netip.MustParseAddr
	const local, router, own6, other6 = "fe80::1234", "fe80::1", "fd88::2", "fd88::1"
	dad, mld := nd(135, own6), []byte{58, 0, 5, 2, 0, 0, 1, 0, 143, 0, 0, 0, 0, 0, 0, 0}
	return []spoofFrame{
		{"an address of the NIC", ip4(own, "10.88.0.2", "10.88.0.1", 9, 9), true},
		{"its second address", ip4(own, "10.88.0.12", "10.88.0.1", 9, 9), true},
		{"another address", ip4(own, "10.88.0.1", "10.88.0.77", 9, 9), false},
		{"another MAC", ip4(other, "10.88.0.2", "10.88.0.1", 9, 9), false},
		{"a question by DHCP", ip4(own, "0.0.0.0", "255.255.255.255", 68, 67), true},
		{"no address, to another port", ip4(own, "0.0.0.0", "255.255.255.255", 68, 69), false},
		{"a question by DHCP from another MAC", ip4(other, "0.0.0.0", "255.255.255.255", 68, 67), false},
		{"an ARP of its own", ethernet(broadcast, own, etherARP, arp(arpRequest, own, addr("10.88.0.2"), other,
			addr("10.88.0.1"))), true},
		{"an ARP probe", ethernet(broadcast, own, etherARP, arp(arpRequest, own, addr("0.0.0.0"), other, addr("10.88.0.2"))),
			true},
		{"an ARP probe for its second address", ethernet(broadcast, own, etherARP, arp(arpRequest, own, addr("0.0.0.0"),
			other, addr("10.88.0.12"))), true},
		{"an ARP probe for another address", ethernet(broadcast, own, etherARP, arp(arpRequest, own, addr("0.0.0.0"), other,
			addr("10.88.0.1"))), false},
		{"an ARP for another address", ethernet(broadcast, own, etherARP, arp(arpReply, own, addr("10.88.0.1"), other,
			addr("10.88.0.77"))), false},
		{"an ARP for another MAC", ethernet(broadcast, own, etherARP, arp(arpReply, other, addr("10.88.0.2"), other,
			addr("10.88.0.77"))), false},
		{"a RARP of its own", rarp(own), true},
		{"a RARP for another MAC", ethernet(broadcast, own, etherRARP, arp(rarpRequest, other, addr("0.0.0.0"), other,
			addr("0.0.0.0"))), false},
		{"an IPv6 address of the NIC", ip6(own, own6, 17, 64, 0, 9, 0, 9, 0, 8, 0, 0), true},
		{"another IPv6 address", ip6(own, other6, 17, 64, 0, 9, 0, 9, 0, 8, 0, 0), false},
		{"an IPv6 address from another MAC", ip6(other, own6, 17, 64, 0, 9, 0, 9, 0, 8, 0, 0), false},
		{"an address of the link", ip6(own, local, 17, 64, 0, 9, 0, 9, 0, 8, 0, 0), true},
		{"detection of a duplicate address", ip6(own, "::", 58, 255, dad...), true},
		{"detection of a duplicate of its address of the link", ip6(own, "::", 58, 255, nd(135, local)...), true},
		{"detection of a duplicate of another's address", ip6(own, "::", 58, 255, nd(135, other6)...), false},
		{"detection of a duplicate of the router's address", ip6(own, "::", 58, 255, nd(135, router)...), false},
		{"the router's address of the link", ip6(own, router, 17, 64, 0, 9, 0, 9, 0, 8, 0, 0), false},
		{"an advertisement of the router's address", ip6(own, local, 58, 255, nd(136, router)...), false},
		{"an advertisement of the router's address from there", ip6(own, router, 58, 255, nd(136, router)...), false},
		{"a question for the router", ip6(own, local, 58, 255, nd(135, router)...), true},
		{"a question in the router's name", ip6(own, router, 58, 255, nd(135, other6)...), false},
		{"a report of multicast groups", ip6(own, "::", 0, 1, mld...), true},
		{"no IPv6 address", ip6(own, "::", 17, 64, 0, 9, 0, 9, 0, 8, 0, 0), false},
		{"an advertisement of its own", ip6(own, own6, 58, 255, nd(136, own6)...), true},
		{"an advertisement of its address of the link", ip6(own, local, 58, 255, nd(136, local)...), true},
		{"an advertisement of another", ip6(own, own6, 58, 255, nd(136, other6)...), false},
		{"an advertisement of another from the link", ip6(own, local, 58, 255, nd(136, other6)...), false},
		{"an advertisement in an extension header",
			ip6(own, own6, 60, 255, append([]byte{58, 0, 1, 4, 0, 0, 0, 0}, nd(136, other6)...)...), false},
		{"a question for a neighbour", ip6(own, own6, 58, 255, nd(135, other6)...), true},
		{"the advertisement of a router", ip6(own, local, 58, 255, 134, 0, 0, 0, 64, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0), false},
		{"the redirect of a router", ip6(own, local, 58, 255, append(nd(137, other6), addr(other6).AsSlice()...)...), false},
		{"another protocol", ethernet(broadcast, own, 0x88b5, make([]byte, 46)), false},
	}
}

// matches reports what the kernel's u32 says of a frame: each word from the network header on.
func matches(keys []netlink.TcU32Key, frame []byte) bool {
	const header = 14
	for _, k := range keys {
		at := header + int(k.Off)
		if at < 0 || at+4 > len(frame) || binary.BigEndian.Uint32(frame[at:])&k.Mask != k.Val&k.Mask {
			return false
		}
	}
	return true
}

// The filters of a guest that may not spoof pass what is its own, and nothing that speaks for
// another or takes another's address away.
func TestVerdicts(t *testing.T) {
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 7}
	nic := spec.NIC{ID: "nic0", MAC: mac.String(),
		Routes: []spec.Route{{IPv6: true, Gateway: netip.MustParseAddr("fe80::1")}}}
	for _, p := range []string{"10.88.0.2/24", "10.88.0.12/24", "fd88::2/64"} {
		nic.Addresses = append(nic.Addresses, netip.MustParsePrefix(p))
	}
	all, err := verdicts(Link{NIC: nic})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range spoofFrames(mac) {
		passes := false
		for _, v := range all {
			if matches(v.keys, f.frame) {
				passes = v.pass
				break
			}
		}
		if passes != f.fine {
			t.Errorf("%s: passes: %v, want %v", f.name, passes, f.fine)
		}
	}
}
