package dhcp

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"

	"godwit.dev/godwit/api/spec"
)

var guestLink = netip.MustParseAddr("fe80::ff:fe00:7")

// solicit is a guest's first question.
func solicit(t testing.TB, kind dhcpv6.MessageType, mods ...dhcpv6.Modifier) *dhcpv6.Message {
	t.Helper()
	m, err := dhcpv6.NewSolicit(mac, mods...)
	if err != nil {
		t.Fatal(err)
	}
	m.MessageType = kind
	return m
}

func addresses(m *dhcpv6.Message) (all []string) {
	for _, ia := range m.Options.IANA() {
		for _, a := range ia.Options.Addresses() {
			text := a.IPv6Addr.String()
			if a.ValidLifetime == 0 {
				text += " ends"
			}
			all = append(all, text)
		}
	}
	return all
}

// Exactly the addresses of the CNI plugin, for as long as the guest lives.
func TestDHCPv6(t *testing.T) {
	s := server(t)
	advert, leases := s.Reply6(solicit(t, dhcpv6.MessageTypeSolicit))
	if advert.MessageType != dhcpv6.MessageTypeAdvertise || leases != nil ||
		!slices.Equal(addresses(advert), []string{"fd00::2"}) {
		t.Fatalf("advertise %s, leases %v", advert.Summary(), leases)
	}
	request, err := dhcpv6.NewRequestFromAdvertise(advert)
	if err != nil {
		t.Fatal(err)
	}
	reply, leases := s.Reply6(request)
	if reply.MessageType != dhcpv6.MessageTypeReply || !slices.Equal(addresses(reply), []string{"fd00::2"}) ||
		!slices.Equal(leases, []Lease{{MAC: mac.String(), Address: netip.MustParsePrefix("fd00::2/64")}}) {
		t.Errorf("reply %s, leases %v", reply.Summary(), leases)
	}
	if a := reply.Options.OneIANA().Options.Addresses()[0]; a.ValidLifetime != always || a.PreferredLifetime != always {
		t.Errorf("lifetimes %v, %v", a.PreferredLifetime, a.ValidLifetime)
	}
	if dns := reply.Options.DNS(); len(dns) != 1 || dns[0].String() != "fd00::53" ||
		!slices.Equal(reply.Options.DomainSearchList().Labels, config().Search) {
		t.Errorf("names: %s", reply.Summary())
	}
	quick, leases := s.Reply6(solicit(t, dhcpv6.MessageTypeSolicit, dhcpv6.WithRapidCommit))
	if quick.MessageType != dhcpv6.MessageTypeReply || quick.GetOneOption(dhcpv6.OptionRapidCommit) == nil ||
		len(leases) != 1 {
		t.Errorf("rapid commit: %s, leases %v", quick.Summary(), leases)
	}
}

// A guest that woke elsewhere gives up what it had and gets what is its own now.
func TestAnotherAddress6(t *testing.T) {
	s := server(t)
	other := dhcpv6.WithIANA(dhcpv6.OptIAAddress{IPv6Addr: net.ParseIP("fd01::9"), ValidLifetime: always})
	renewed, leases := s.Reply6(solicit(t, dhcpv6.MessageTypeRenew, other))
	if diff := cmp.Diff([]string{"fd00::2", "fd01::9 ends"}, addresses(renewed)); diff != "" || len(leases) != 1 {
		t.Errorf("renewal (-want +got):\n%s", diff)
	}
	own := dhcpv6.WithIANA(dhcpv6.OptIAAddress{IPv6Addr: net.ParseIP("fd00::2")})
	for want, mod := range map[iana.StatusCode]dhcpv6.Modifier{iana.StatusNotOnLink: other, iana.StatusSuccess: own} {
		if m, leases := s.Reply6(solicit(t, dhcpv6.MessageTypeConfirm, mod)); m.Options.Status() == nil ||
			m.Options.Status().StatusCode != want || leases != nil {
			t.Errorf("confirm: %s, want %s", m.Summary(), want)
		}
	}
	if m, _ := s.Reply6(solicit(t, dhcpv6.MessageTypeConfirm)); m != nil {
		t.Errorf("a confirm of nothing is answered: %s", m.Summary())
	}
}

func TestSilence6(t *testing.T) {
	s := server(t)
	foreign := dhcpv6.WithServerID(&dhcpv6.DUIDLL{HWType: iana.HWTypeEthernet, LinkLayerAddr: mac})
	for name, req := range map[string]*dhcpv6.Message{
		"another's offer":   solicit(t, dhcpv6.MessageTypeRequest, foreign),
		"nobody":            {MessageType: dhcpv6.MessageTypeSolicit},
		"a server's answer": solicit(t, dhcpv6.MessageTypeReply),
	} {
		if m, leases := s.Reply6(req); m != nil || leases != nil {
			t.Errorf("%s: answered %s", name, m.Summary())
		}
	}
	for kind, leased := range map[dhcpv6.MessageType]bool{dhcpv6.MessageTypeRelease: false,
		dhcpv6.MessageTypeDecline: false, dhcpv6.MessageTypeInformationRequest: false, dhcpv6.MessageTypeRebind: true} {
		m, leases := s.Reply6(solicit(t, kind))
		if m == nil || m.MessageType != dhcpv6.MessageTypeReply || (leases != nil) != leased {
			t.Errorf("%s: %v, leases %v", kind, m, leases)
		}
	}
	four := server(t, func(c *Config) { c.NIC.Addresses = c.NIC.Addresses[1:] })
	if m, _ := four.Reply6(solicit(t, dhcpv6.MessageTypeSolicit)); m != nil || four.Advertisements() != nil {
		t.Error("a NIC without IPv6 is told of it")
	}
	six := server(t, func(c *Config) { c.NIC.Addresses = c.NIC.Addresses[:1] })
	if m, _ := six.ask(t, discover(t)); m != nil {
		t.Error("a NIC without IPv4 is told of it")
	}
}

// from is a frame of the guest's link-local address.
func from(next, hops byte, dst netip.Addr, body []byte) []byte {
	return packet6(mac, allNodesMAC, guestLink, dst, next, hops, 2, body)
}

func ask6(target netip.Addr) []byte {
	m := append([]byte{NeighborSolicit, 0, 0, 0, 0, 0, 0, 0}, target.AsSlice()...)
	return from(protoICMP6, 255, allNodes, append(append(m, 1, 1), mac...))
}

// advert is what a guest reads out of an advertisement.
type advert struct {
	From     string
	Flags    byte
	Lifetime uint16
	MAC      string
	MTU      uint32
	Prefixes []string // with their flags
	Routes   []string
	DNS      []string
}

func readAdvert(t *testing.T, f []byte) (a advert) {
	t.Helper()
	ip := f[14:]
	body := ip[40:]
	src, _ := netip.AddrFromSlice(ip[8:24])
	if int(binary.BigEndian.Uint16(ip[4:])) != len(body) || ip[7] != 255 || body[0] != RouterAdvert || !valid6(ip) {
		t.Fatalf("no advertisement: % x", f)
	}
	a = advert{From: src.String(), Flags: body[5], Lifetime: binary.BigEndian.Uint16(body[6:])}
	addr := func(b []byte) string { x, _ := netip.AddrFromSlice(b); return x.String() }
	for o := body[16:]; len(o) > 0; o = o[8*int(o[1]):] {
		switch o[0] {
		case 1:
			a.MAC = net.HardwareAddr(o[2:8]).String()
		case 5:
			a.MTU = binary.BigEndian.Uint32(o[4:])
		case 3:
			a.Prefixes = append(a.Prefixes, netip.PrefixFrom(netip.MustParseAddr(addr(o[16:32])), int(o[2])).
				String()+map[byte]string{0x80: " on link"}[o[3]])
		case 24:
			a.Routes = append(a.Routes, netip.PrefixFrom(netip.MustParseAddr(addr(o[8:24])), int(o[2])).String())
		case 25:
			for x := o[8 : 8*int(o[1])]; len(x) > 0; x = x[16:] {
				a.DNS = append(a.DNS, addr(x[:16]))
			}
		}
	}
	return a
}

// valid6 recomputes the checksum: over the whole, it is zero.
func valid6(ip []byte) bool {
	pseudo := append(slices.Clone(ip[8:40]), 0, 0, ip[4], ip[5], 0, 0, 0, ip[6])
	pseudo = append(pseudo, ip[40:]...)
	if len(pseudo)%2 == 1 {
		pseudo = append(pseudo, 0)
	}
	return checksum(pseudo) == 0
}

// A guest is told of each gateway from an address of the link: its own one, or that of a
// stand-in with the gateway's MAC, about which questions are answered.
func TestRouterAdvertisement(t *testing.T) {
	global, second := netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::99")
	s := server(t, func(c *Config) {
		c.NIC.Routes = append(c.NIC.Routes,
			spec.Route{IPv6: true, Gateway: second, Destination: netip.MustParsePrefix("fd77::/48")},
			spec.Route{IPv6: true, Gateway: netip.MustParseAddr("fe80::1"), Destination: netip.MustParsePrefix("fd78::/48")},
			spec.Route{IPv6: true, Destination: netip.MustParsePrefix("fd79::/64")},
			spec.Route{IPv6: true, Gateway: netip.MustParseAddr("fd00::bad"), Destination: netip.MustParsePrefix("fd80::/48")})
		c.Neighbors = map[netip.Addr]string{global: "02:00:00:00:00:11", second: "02:00:00:00:00:22"}
	})
	replies, leases, err := s.Frame(from(protoICMP6, 255, allNodes, []byte{RouterSolicit, 0, 0, 0, 0, 0, 0, 0}))
	if err != nil || leases != nil {
		t.Fatal(err, leases)
	}
	var got []advert
	for _, f := range replies {
		got = append(got, readAdvert(t, f))
	}
	on, dns := []string{"fd00::/64 on link", "fd79::/64 on link"}, []string{"fd00::53"}
	want := []advert{
		{From: "fe80::67:77ff:fe64:6863", Flags: 0xc0, Lifetime: 0xffff, MAC: "02:00:00:00:00:11", MTU: 1400,
			Prefixes: on, DNS: dns},
		{From: "fe80::67:77ff:fe64:6864", Flags: 0xc0, MAC: "02:00:00:00:00:22", MTU: 1400, Prefixes: on,
			Routes: []string{"fd77::/48"}, DNS: dns},
		{From: "fe80::1", Flags: 0xc0, MTU: 1400, Prefixes: on, Routes: []string{"fd78::/48"}, DNS: dns},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("advertisements (-want +got):\n%s", diff)
	}
	for target, want := range map[string]string{"fe80::67:77ff:fe64:6863": "02:00:00:00:00:11",
		"fe80::67:77ff:fe64:6864": "02:00:00:00:00:22", "fe80::1": "", "fd00::1": ""} {
		replies, _, err := s.Frame(ask6(netip.MustParseAddr(target)))
		if err != nil || (len(replies) == 1) != (want != "") {
			t.Errorf("who has %s: %d replies, %v", target, len(replies), err)
			continue
		}
		if want == "" {
			continue
		}
		body := replies[0][54:]
		if body[0] != neighborAdvert || !valid6(replies[0][14:]) || net.HardwareAddr(body[26:32]).String() != want ||
			body[4] != 0xe0 {
			t.Errorf("who has %s: % x", target, body)
		}
	}
	alone := server(t, func(c *Config) { c.NIC.Routes = nil })
	if a := readAdvert(t, alone.Advertisements()[0]); a.Lifetime != 0 || a.From != serverLink.String() {
		t.Errorf("without a gateway: %+v", a)
	}
}

// The whole exchange in frames; what is no question of this guest is not answered.
func TestFrames6(t *testing.T) {
	s := server(t)
	datagram := func(m *dhcpv6.Message) []byte {
		data := m.ToBytes()
		udp := binary.BigEndian.AppendUint16(nil, ClientPort6)
		udp = binary.BigEndian.AppendUint16(udp, ServerPort6)
		udp = binary.BigEndian.AppendUint16(udp, uint16(8+len(data)))
		return packet6(mac, allNodesMAC, guestLink, netip.MustParseAddr("ff02::1:2"), protoUDP, 64, 6,
			append(append(udp, 0, 0), data...))
	}
	good := datagram(solicit(t, dhcpv6.MessageTypeRequest))
	replies, leases, err := s.Frame(good)
	if err != nil || len(replies) != 1 || len(leases) != 1 || !valid6(replies[0][14:]) ||
		!slices.Equal(replies[0][:6], mac) {
		t.Fatalf("request: %d replies, leases %v, %v", len(replies), leases, err)
	}
	if m, err := dhcpv6.MessageFromBytes(replies[0][62:]); err != nil || m.MessageType != dhcpv6.MessageTypeReply {
		t.Errorf("body: %v, %v", m, err)
	}
	for name, change := range map[string]func([]byte) []byte{
		"another MAC": func(f []byte) []byte { f[11]++; return f },
		"short":       func(f []byte) []byte { return f[:60] },
		"longer":      func(f []byte) []byte { f[18] = 0xff; return f },
		"not IPv6":    func(f []byte) []byte { f[14] = 0x45; return f },
		"other port":  func(f []byte) []byte { f[57]++; return f },
		"global":      func(f []byte) []byte { f[22] = 0x20; return f },
		"no message":  func(f []byte) []byte { return f[:62] },
		"routed query": func([]byte) []byte {
			return from(protoICMP6, 64, allNodes, []byte{RouterSolicit, 0, 0, 0, 0, 0, 0, 0})
		},
		"an advert": func([]byte) []byte { return from(protoICMP6, 255, allNodes, make([]byte, 16)) },
	} {
		if replies, leases, err := s.Frame(change(slices.Clone(good))); replies != nil || leases != nil || err != nil {
			t.Errorf("%s: %d replies, %v, %v", name, len(replies), leases, err)
		}
	}
}
