package dhcp

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv6"

	"godwit.dev/godwit/api/spec"
)

// domains are as many search domains as resolv.conf may have, each as long as a cluster's.
func domains(c *Config) {
	c.Search = nil
	for i := range 32 {
		c.Search = append(c.Search, fmt.Sprintf("namespace-%02d.%s.svc.cluster-%02d.example.org", i, strings.Repeat("x", 30),
			i))
	}
}

// Without an IPv4 name server an answer has no option for one: an option of length 0 makes clients
// drop the whole answer.
func TestNoIPv4NameServer(t *testing.T) {
	s := server(t, func(c *Config) { c.DNS = []netip.Addr{netip.MustParseAddr("fd00::53")} })
	m, _ := s.ask(t, discover(t))
	if m.Options.Has(dhcpv4.OptionDomainNameServer) {
		t.Errorf("%x", m.Options.Get(dhcpv4.OptionDomainNameServer))
	}
}

// Every message fits one packet of the link, and what the client takes. Of a long search list
// the first domains stay. Addresses and routes always stay.
func TestLongSearchList(t *testing.T) {
	s := server(t, domains)
	all := s.search
	for _, size := range []uint16{0, 576, 1200, 9000} {
		req := discover(t)
		want := 576
		if size > 0 {
			req.UpdateOption(dhcpv4.OptMaxMessageSize(size))
			want = min(int(size), 1400)
		}
		m, _ := s.ask(t, req)
		got := m.DomainSearch()
		if n := len(m.ToBytes()) + 28; n > want {
			t.Errorf("message size %d: a packet of %d bytes", size, n)
		}
		if got == nil || len(got.Labels) == 0 || !slices.Equal(got.Labels, all[:len(got.Labels)]) {
			t.Errorf("message size %d: search list %v", size, got)
		}
		if len(m.Router()) != 1 || len(m.DNS()) != 1 || m.SubnetMask() == nil {
			t.Errorf("message size %d: %s", size, m.Summary())
		}
	}
	m6, _ := s.Reply6(solicit(t, dhcpv6.MessageTypeRequest, dhcpv6.WithServerID(duid())))
	if n := len(m6.ToBytes()) + 48; n > 1400 || m6.Options.DomainSearchList() == nil || len(addresses(m6)) != 1 {
		t.Errorf("DHCPv6: a packet of %d bytes: %s", n, m6.Summary())
	}
	for _, f := range s.Advertisements() {
		if len(f)-14 > 1400 {
			t.Errorf("an advertisement of %d bytes", len(f)-14)
		}
	}
	short := server(t) // nothing is taken off what fits
	if m, _ := short.ask(t, discover(t)); len(m.DomainSearch().Labels) != 2 || m.HostName() != "web" {
		t.Errorf("%s", m.Summary())
	}
}

// Routes that no packet can tell are refused with the remedy, before a guest asks.
func TestTooManyRoutes(t *testing.T) {
	for _, family := range []string{"10.%d.%d.0/24", "fd%02d:%d::/48"} {
		cfg := config()
		cfg.Neighbors = map[netip.Addr]string{netip.MustParseAddr("fd00::1"): "02:00:00:00:00:09"}
		for i := range 300 {
			p := netip.MustParsePrefix(fmt.Sprintf(family, 10+i/50, 10+i%50))
			r := spec.Route{Destination: p, Gateway: netip.MustParseAddr("10.88.0.1")}
			if p.Addr().Is6() {
				r.IPv6, r.Gateway = true, netip.MustParseAddr("fd00::1")
			}
			cfg.NIC.Routes = append(cfg.NIC.Routes, r)
		}
		if _, err := New(cfg); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "fewer IP") {
			t.Errorf("%s: %v", family, err)
		}
	}
}

// Of several default routes the preferred one becomes the router. An IPv4 route by an IPv6
// gateway, for which no option exists, is not told as one of IPv6.
func TestPreferredDefault(t *testing.T) {
	s := server(t, func(c *Config) {
		c.NIC.Routes = []spec.Route{
			{Gateway: netip.MustParseAddr("10.88.0.1")}, {Gateway: netip.MustParseAddr("10.88.0.2"), Metric: 50},
			{Gateway: netip.MustParseAddr("fe80::9")},
		}
	})
	m, _ := s.ask(t, discover(t))
	if r := m.Router(); len(r) != 1 || r[0].String() != "10.88.0.1" {
		t.Errorf("routers %v", r)
	}
	if len(s.routers) != 1 || s.routers[0].isDefault {
		t.Errorf("routers of IPv6: %+v", s.routers)
	}
}
