// Package dhcp answers the DHCP of one guest: with the addresses that the CNI plugin gave
// its interface, and with nothing else. A guest without an agent is configured so, and
// its lease is something that godwit sees. For IPv6 it is the guest's router too, as far
// as words go. It does no IO: package network moves the frames.
//
// RFC 2131 (protocol), 2132 (options), 3397 (search list), 3442 (classless routes); RFC
// 8415 (DHCPv6), 4861 (routers and neighbours), 4191 (routes), 8106 (DNS).
package dhcp

import (
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/rfc1035label"

	"godwit.dev/godwit/api/spec"
)

// Config is what the guest is told.
type Config struct {
	// NIC gives MAC, MTU, addresses (the first one of IPv4, all of IPv6) and routes.
	NIC      spec.NIC
	Hostname string
	DNS      []netip.Addr
	Search   []string
	// Neighbors are the MACs of gateways that have no link-local address: a guest can be
	// told of an IPv6 route through them only with their MAC.
	Neighbors map[netip.Addr]string
}

// Lease is the guest's word that it uses the address.
type Lease struct {
	MAC     string
	Address netip.Prefix
}

// Server answers one NIC. Its methods may be called at the same time.
type Server struct {
	mac     net.HardwareAddr
	address netip.Prefix
	id      netip.Addr // server identifier, and source of the answers
	options []dhcpv4.Option

	mtu        int
	addresses6 []netip.Prefix
	onLink     []netip.Prefix
	routers    []router
	dns6       []netip.Addr
	search     []string
}

// forever is the lease time: a guest that slept for days keeps its address. Another
// address is offered to a link that goes down and up.
const forever = math.MaxUint32 * time.Second

// unknownServer stands in where no gateway is known (RFC 3927 addresses belong to no host for
// good).
var unknownServer = netip.MustParseAddr("169.254.1.1")

// New refuses a NIC that DHCP cannot configure.
func New(cfg Config) (*Server, error) {
	mac, err := net.ParseMAC(cfg.NIC.MAC)
	if err != nil || len(mac) != 6 {
		return nil, fmt.Errorf("serve DHCP on %s: MAC %q: six bytes wanted: %w", cfg.NIC.ID, cfg.NIC.MAC,
			errdefs.ErrInvalidArgument)
	}
	s := &Server{mac: mac, id: unknownServer, mtu: cfg.NIC.MTU, search: cfg.Search}
	for _, p := range cfg.NIC.Addresses {
		switch a := p.Addr().Unmap(); {
		case a.Is6():
			s.addresses6 = append(s.addresses6, p)
		case a.Is4() && !s.address.IsValid():
			s.address = netip.PrefixFrom(a, p.Bits())
		}
	}
	for _, a := range cfg.DNS {
		if a.Unmap().Is6() {
			s.dns6 = append(s.dns6, a)
		}
	}
	if !s.address.IsValid() && len(s.addresses6) == 0 {
		return nil, fmt.Errorf("serve DHCP on %s: it has no address: %w", cfg.NIC.ID, errdefs.ErrFailedPrecondition)
	}
	if s.address.IsValid() {
		s.options = s.describe(cfg)
	}
	if len(s.addresses6) > 0 {
		s.describe6(cfg)
	}
	if err := s.fits(); err != nil {
		return nil, fmt.Errorf("serve DHCP on %s: %w", cfg.NIC.ID, err)
	}
	return s, nil
}

// describe lists the options of every answer, and picks the server's identifier: the
// gateway, which every guest can resolve when it renews by unicast.
func (s *Server) describe(cfg Config) []dhcpv4.Option {
	list := []dhcpv4.Option{
		dhcpv4.OptSubnetMask(net.CIDRMask(s.address.Bits(), 32)),
		dhcpv4.OptGeneric(dhcpv4.OptionInterfaceMTU, []byte{byte(cfg.NIC.MTU >> 8), byte(cfg.NIC.MTU)}),
	}
	routes, gateway := s.routes(cfg.NIC.Routes)
	if gateway.IsValid() {
		s.id = gateway
		if s.address.Contains(gateway) {
			list = append(list, dhcpv4.OptRouter(gateway.AsSlice()))
		}
	}
	if len(routes) > 1 || gateway.IsValid() && !s.address.Contains(gateway) {
		list = append(list, dhcpv4.OptClasslessStaticRoute(routes...))
	}
	var servers []net.IP
	for _, a := range cfg.DNS {
		if a.Unmap().Is4() {
			servers = append(servers, a.Unmap().AsSlice())
		}
	}
	if len(servers) > 0 { // an option of length 0 is none (RFC 2132, 3.8)
		list = append(list, dhcpv4.OptDNS(servers...))
	}
	if len(cfg.Search) > 0 {
		list = append(list, dhcpv4.OptDomainName(cfg.Search[0]),
			dhcpv4.OptDomainSearch(&rfc1035label.Labels{Labels: cfg.Search}))
	}
	if cfg.Hostname != "" {
		list = append(list, dhcpv4.OptHostName(cfg.Hostname))
	}
	return append(list, dhcpv4.OptServerIdentifier(s.id.AsSlice()))
}

// routes turns those of IPv4 into option 121, which replaces the router option where a
// guest knows it. A gateway outside of the network gets a route of its own first.
func (s *Server) routes(all []spec.Route) (out []*dhcpv4.Route, gateway netip.Addr) {
	seen := map[netip.Prefix]bool{s.address.Masked(): true} // the mask says that one
	add := func(to netip.Prefix, via netip.Addr) {
		if seen[to.Masked()] {
			return
		}
		seen[to.Masked()] = true
		out = append(out, &dhcpv4.Route{
			Dest:   &net.IPNet{IP: to.Masked().Addr().AsSlice(), Mask: net.CIDRMask(to.Bits(), 32)},
			Router: via.AsSlice(),
		})
	}
	onLink := netip.IPv4Unspecified()
	for _, r := range all {
		to, via := r.Destination, r.Gateway.Unmap()
		// no option names an IPv6 gateway of IPv4
		if r.IPv6 || to.IsValid() && !to.Addr().Is4() || via.IsValid() && !via.Is4() {
			continue
		}
		if !to.IsValid() {
			to = netip.PrefixFrom(onLink, 0)
		}
		if !via.IsValid() {
			add(to, onLink)
			continue
		}
		if !s.address.Contains(via) {
			add(netip.PrefixFrom(via, 32), onLink)
		}
		add(to, via)
		if to.Bits() == 0 && !gateway.IsValid() { // the preferred one comes first
			gateway = via
		}
	}
	return out, gateway
}

// Reply answers a message of the guest; nil: there is nothing to say. lease is set when
// the answer confirms the address.
func (s *Server) Reply(req *dhcpv4.DHCPv4) (answer *dhcpv4.DHCPv4, lease *Lease, err error) {
	if !s.address.IsValid() || req.OpCode != dhcpv4.OpcodeBootRequest || !slices.Equal(req.ClientHWAddr, s.mac) {
		return nil, nil, nil // from the other side of a bridge in the guest
	}
	switch req.MessageType() {
	case dhcpv4.MessageTypeDiscover:
		answer, err = s.answer(req, dhcpv4.MessageTypeOffer)
	case dhcpv4.MessageTypeRequest:
		if id := req.ServerIdentifier(); id != nil && !id.Equal(s.id.AsSlice()) {
			return nil, nil, nil // it takes another server's offer, which it had before it came here
		}
		if wanted(req) != s.address.Addr() {
			answer, err = s.refuse(req)
			break
		}
		answer, err = s.answer(req, dhcpv4.MessageTypeAck)
		lease = &Lease{MAC: s.mac.String(), Address: s.address}
	case dhcpv4.MessageTypeInform:
		if answer, err = s.inform(req); err == nil {
			s.shorten(req, answer)
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("answer DHCP of %s: %w", s.mac, err)
	}
	return answer, lease, nil
}

// wanted is the address that a request is about (RFC 2131, table 4).
func wanted(req *dhcpv4.DHCPv4) netip.Addr {
	ip := req.RequestedIPAddress()
	if ip == nil {
		ip = req.ClientIPAddr
	}
	a, _ := netip.AddrFromSlice(ip.To4())
	return a
}

func (s *Server) answer(req *dhcpv4.DHCPv4, kind dhcpv4.MessageType) (*dhcpv4.DHCPv4, error) {
	m, err := s.inform(req)
	if err != nil {
		return nil, err
	}
	m.YourIPAddr = s.address.Addr().AsSlice()
	m.UpdateOption(dhcpv4.OptMessageType(kind))
	m.UpdateOption(dhcpv4.OptIPAddressLeaseTime(forever))
	s.shorten(req, m)
	return m, nil
}

// inform answers a guest that has its address and asks for the rest.
func (s *Server) inform(req *dhcpv4.DHCPv4) (*dhcpv4.DHCPv4, error) {
	m, err := dhcpv4.NewReplyFromRequest(req, dhcpv4.WithMessageType(dhcpv4.MessageTypeAck))
	if err != nil {
		return nil, err
	}
	for _, o := range s.options {
		m.UpdateOption(o)
	}
	return m, nil
}

// refuse makes a guest that remembers another address ask anew.
func (s *Server) refuse(req *dhcpv4.DHCPv4) (*dhcpv4.DHCPv4, error) {
	m, err := dhcpv4.NewReplyFromRequest(req, dhcpv4.WithMessageType(dhcpv4.MessageTypeNak),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(s.id.AsSlice())))
	if err == nil {
		m.SetBroadcast()
	}
	return m, err
}
