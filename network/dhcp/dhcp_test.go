package dhcp

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/insomniacslk/dhcp/dhcpv4"

	"godwit.dev/godwit/api/spec"
)

var mac = net.HardwareAddr{2, 0, 0, 0, 0, 7}

func config() Config {
	return Config{
		NIC: spec.NIC{
			ID: "net0", MAC: mac.String(), MTU: 1400,
			Addresses: []netip.Prefix{netip.MustParsePrefix("fd00::2/64"), netip.MustParsePrefix("10.88.0.5/24"),
				netip.MustParsePrefix("10.88.0.6/24")},
			Routes: []spec.Route{{Gateway: netip.MustParseAddr("10.88.0.1")},
				{IPv6: true, Gateway: netip.MustParseAddr("fd00::1")}},
		},
		Hostname: "web", DNS: []netip.Addr{netip.MustParseAddr("10.88.0.53"), netip.MustParseAddr("fd00::53")},
		Search: []string{"example.org", "corp.example.org"},
	}
}

func server(t *testing.T, change ...func(*Config)) *Server {
	t.Helper()
	cfg := config()
	for _, c := range change {
		c(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func discover(t *testing.T, mods ...dhcpv4.Modifier) *dhcpv4.DHCPv4 {
	t.Helper()
	m, err := dhcpv4.NewDiscovery(mac, mods...)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func (s *Server) ask(t *testing.T, req *dhcpv4.DHCPv4) (*dhcpv4.DHCPv4, *Lease) {
	t.Helper()
	m, lease, err := s.Reply(req)
	if err != nil {
		t.Fatal(err)
	}
	return m, lease
}

// The guest gets exactly what the CNI plugin gave the interface, and its lease is seen.
func TestOfferAndLease(t *testing.T) {
	s := server(t)
	offer, lease := s.ask(t, discover(t))
	if offer.MessageType() != dhcpv4.MessageTypeOffer || lease != nil {
		t.Fatalf("answer to a discover: %v, lease %v", offer, lease)
	}
	request, err := dhcpv4.NewRequestFromOffer(offer)
	if err != nil {
		t.Fatal(err)
	}
	ack, lease := s.ask(t, request)
	if diff := cmp.Diff(&Lease{MAC: mac.String(), Address: netip.MustParsePrefix("10.88.0.5/24")}, lease,
		cmp.Comparer(func(a, b netip.Prefix) bool {
			return a == b
		})); diff != "" {
		t.Errorf("lease (-want +got):\n%s", diff)
	}
	if ack.MessageType() != dhcpv4.MessageTypeAck || !ack.YourIPAddr.Equal(net.IPv4(10, 88, 0, 5)) ||
		ack.SubnetMask().String() != "ffffff00" ||
		len(ack.Router()) != 1 || !ack.Router()[0].Equal(net.IPv4(10, 88, 0, 1)) || ack.ClasslessStaticRoute() != nil {
		t.Errorf("address and route: %s", ack.Summary())
	}
	if len(ack.DNS()) != 1 || !ack.DNS()[0].Equal(net.IPv4(10, 88, 0, 53)) || ack.HostName() != "web" ||
		ack.DomainName() != "example.org" ||
		len(ack.DomainSearch().Labels) != 2 || string(ack.GetOneOption(dhcpv4.OptionInterfaceMTU)) != "\x05\x78" {
		t.Errorf("names and MTU: %s", ack.Summary())
	}
	if got := ack.IPAddressLeaseTime(0); got != forever || got < 100*365*24*time.Hour {
		t.Errorf("lease time %v", got)
	}
}

// A guest that asks for another address is refused, as it does after it woke elsewhere. It then
// gets the one that is its own now.
func TestAnotherAddress(t *testing.T) {
	s := server(t)
	other := net.IPv4(10, 77, 0, 9)
	for name, req := range map[string]*dhcpv4.DHCPv4{
		"after a reboot": discover(t, dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest),
			dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(other))),
		"to renew":   discover(t, dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest), dhcpv4.WithClientIP(other)),
		"of nothing": discover(t, dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest)),
	} {
		nak, lease := s.ask(t, req)
		if nak.MessageType() != dhcpv4.MessageTypeNak || lease != nil || !nak.IsBroadcast() ||
			!nak.YourIPAddr.IsUnspecified() {
			t.Errorf("%s: %v, lease %v", name, nak, lease)
		}
	}
	renew := discover(t, dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest), dhcpv4.WithClientIP(net.IPv4(10, 88, 0, 5)))
	if ack, lease := s.ask(t, renew); ack.MessageType() != dhcpv4.MessageTypeAck || lease == nil {
		t.Errorf("renewal: %v", ack)
	}
}

// Silence for whom no answer is meant.
func TestSilence(t *testing.T) {
	s := server(t)
	for name, req := range map[string]*dhcpv4.DHCPv4{
		"another MAC": discover(t, dhcpv4.WithHwAddr(net.HardwareAddr{2, 0, 0, 0, 0, 8})),
		"another's offer": discover(t, dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest),
			dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.IPv4(10, 88, 0, 9)))),
		"a release":        discover(t, dhcpv4.WithMessageType(dhcpv4.MessageTypeRelease)),
		"a decline":        discover(t, dhcpv4.WithMessageType(dhcpv4.MessageTypeDecline)),
		"a server's offer": discover(t, func(m *dhcpv4.DHCPv4) { m.OpCode = dhcpv4.OpcodeBootReply }),
	} {
		if m, lease := s.ask(t, req); m != nil || lease != nil {
			t.Errorf("%s: answered %v", name, m)
		}
	}
	inform := discover(t, dhcpv4.WithMessageType(dhcpv4.MessageTypeInform), dhcpv4.WithClientIP(net.IPv4(10, 88, 0, 5)))
	if m, lease := s.ask(t, inform); m.MessageType() != dhcpv4.MessageTypeAck || lease != nil ||
		!m.YourIPAddr.IsUnspecified() || m.Options.Has(dhcpv4.OptionIPAddressLeaseTime) {
		t.Errorf("inform: %v", m)
	}
}

func TestRoutes(t *testing.T) {
	gateway := netip.MustParseAddr("169.254.7.1")
	s := server(t, func(c *Config) {
		c.NIC.Addresses = []netip.Prefix{netip.MustParsePrefix("10.1.2.3/32")}
		c.NIC.Routes = []spec.Route{
			{Destination: netip.PrefixFrom(gateway, 32)}, {Gateway: gateway},
			{Destination: netip.MustParsePrefix("172.16.0.0/12"), Gateway: gateway},
		}
	})
	offer, _ := s.ask(t, discover(t))
	var got []string
	for _, r := range offer.ClasslessStaticRoute() {
		got = append(got, r.String())
	}
	want := []string{
		"route to 169.254.7.1/32 via 0.0.0.0", "route to 0.0.0.0/0 via 169.254.7.1", "route to 172.16.0.0/12 via 169.254.7.1",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("routes (-want +got):\n%s", diff)
	}
	if offer.Router() != nil || !offer.ServerIdentifier().Equal(gateway.AsSlice()) {
		t.Errorf("router %v, server %v", offer.Router(), offer.ServerIdentifier())
	}
	alone := server(t, func(c *Config) { c.NIC.Routes = nil })
	if m, _ := alone.ask(t, discover(t)); !m.ServerIdentifier().Equal(unknownServer.AsSlice()) || m.Router() != nil {
		t.Errorf("without a gateway: %s", m.Summary())
	}
}

func TestRefusedNICs(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"MAC":     func(c *Config) { c.NIC.MAC = "2:0" },
		"address": func(c *Config) { c.NIC.Addresses = nil },
	} {
		cfg := config()
		change(&cfg)
		if _, err := New(cfg); !errdefs.IsInvalidArgument(err) && !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
