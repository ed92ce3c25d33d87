//go:build integration

package network

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
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

// A guest that may not spoof is heard under its own MAC and addresses, in ARP and neighbour
// discovery too, and under no other; what it needs before it has an address passes. One that may
// is heard under all.
func TestSpoof(t *testing.T) {
	for _, policy := range []string{SpoofDeny, SpoofAllow, ""} {
		t.Run("policy "+policy, func(t *testing.T) {
			f := newFabric(t, 1, 1500)
			a, links := f.attach(t, 0, func(l *Link) { l.Spoof = policy })
			g, w := newGuest(t, a, 0), listen(t, f.ns, "port0")
			for range 2 { // and after a Mute
				if err := a.Up(t.Context()); err != nil {
					t.Fatal(err)
				}
				spoofs(t, g, w, policy != SpoofDeny)
				if err := a.Mute(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := g.send(ip4(g.mac, "10.88.0.2", "10.88.0.1", 9, 9)); err != nil {
					t.Fatal(err)
				}
				if got := w.drain(links[0].NIC.MAC); len(got) != 0 {
					t.Errorf("%d frames while mute", len(got))
				}
			}
		})
	}
}

func spoofs(t *testing.T, g *guest, w wire, all bool) {
	t.Helper()
	own, other := g.mac, net.HardwareAddr{2, 0, 0, 0, 0, 9}
	addr := netip.MustParseAddr
	const local, own6, other6 = "fe80::1234", "fd88::2", "fd88::1"
	dad, mld := nd(135, own6), []byte{58, 0, 5, 2, 0, 0, 1, 0, 143, 0, 0, 0, 0, 0, 0, 0}
	frames := []struct {
		name  string
		frame []byte
		fine  bool
	}{
		{"an address of the NIC", ip4(own, "10.88.0.2", "10.88.0.1", 9, 9), true},
		{"its second address", ip4(own, "10.88.0.12", "10.88.0.1", 9, 9), true},
		{"another address", ip4(own, "10.88.0.1", "10.88.0.77", 9, 9), false},
		{"another MAC", ip4(other, "10.88.0.2", "10.88.0.1", 9, 9), false},
		{"a question by DHCP", ip4(own, "0.0.0.0", "255.255.255.255", 68, 67), true},
		{"no address, to another port", ip4(own, "0.0.0.0", "255.255.255.255", 68, 69), false},
		{"a question by DHCP from another MAC", ip4(other, "0.0.0.0", "255.255.255.255", 68, 67), false},
		{"an ARP of its own", ethernet(broadcast, own, etherARP, arp(arpRequest, own, addr("10.88.0.2"), other, addr("10.88.0.1"))), true},
		{"an ARP probe", ethernet(broadcast, own, etherARP, arp(arpRequest, own, addr("0.0.0.0"), other, addr("10.88.0.2"))), true},
		{"an ARP for another address", ethernet(broadcast, own, etherARP, arp(arpReply, own, addr("10.88.0.1"), other, addr("10.88.0.77"))), false},
		{"an ARP for another MAC", ethernet(broadcast, own, etherARP, arp(arpReply, other, addr("10.88.0.2"), other, addr("10.88.0.77"))), false},
		{"a RARP of its own", rarp(own), true},
		{"a RARP for another MAC", ethernet(broadcast, own, etherRARP, arp(rarpRequest, other, addr("0.0.0.0"), other, addr("0.0.0.0"))), false},
		{"an IPv6 address of the NIC", ip6(own, own6, 17, 64, 0, 9, 0, 9, 0, 8, 0, 0), true},
		{"another IPv6 address", ip6(own, other6, 17, 64, 0, 9, 0, 9, 0, 8, 0, 0), false},
		{"an IPv6 address from another MAC", ip6(other, own6, 17, 64, 0, 9, 0, 9, 0, 8, 0, 0), false},
		{"an address of the link", ip6(own, local, 17, 64, 0, 9, 0, 9, 0, 8, 0, 0), true},
		{"detection of a duplicate address", ip6(own, "::", 58, 255, dad...), true},
		{"a report of multicast groups", ip6(own, "::", 0, 1, mld...), true},
		{"no IPv6 address", ip6(own, "::", 17, 64, 0, 9, 0, 9, 0, 8, 0, 0), false},
		{"an advertisement of its own", ip6(own, own6, 58, 255, nd(136, own6)...), true},
		{"an advertisement of its address of the link", ip6(own, local, 58, 255, nd(136, local)...), true},
		{"an advertisement of another", ip6(own, own6, 58, 255, nd(136, other6)...), false},
		{"an advertisement of another from the link", ip6(own, local, 58, 255, nd(136, other6)...), false},
		{"an advertisement in an extension header", ip6(own, own6, 60, 255, append([]byte{58, 0, 1, 4, 0, 0, 0, 0}, nd(136, other6)...)...), false},
		{"a question for a neighbour", ip6(own, own6, 58, 255, nd(135, other6)...), true},
		{"the advertisement of a router", ip6(own, local, 58, 255, 134, 0, 0, 0, 64, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0), false},
		{"the redirect of a router", ip6(own, local, 58, 255, append(nd(137, other6), addr(other6).AsSlice()...)...), false},
		{"another protocol", ethernet(broadcast, own, 0x88b5, make([]byte, 46)), false},
	}
	type heard struct {
		Name string
		Was  bool
	}
	var got, want []heard
	w.drain("")
	for _, fr := range frames {
		if err := g.send(fr.frame); err != nil {
			t.Fatal(err)
		}
		// The tap hands a frame over before the write returns.
		got = append(got, heard{fr.name, slices.ContainsFunc(w.drain(""), func(b []byte) bool { return bytes.Equal(b, fr.frame) })})
		want = append(want, heard{fr.name, fr.fine || all})
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
