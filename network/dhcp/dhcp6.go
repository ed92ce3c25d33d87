package dhcp

import (
	"math"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"
)

// always is the lifetime of an address of IPv6: it does not end, as a lease does not.
const always = math.MaxUint32 * time.Second

// optionHeader is what stands before each option of DHCPv6: its code and its length.
const optionHeader = 4

// duid names the server. It is the same on every node: a guest that wakes elsewhere
// renews what it has with the one that it knows.
func duid() dhcpv6.DUID {
	return &dhcpv6.DUIDLL{HWType: iana.HWTypeEthernet, LinkLayerAddr: ServerMAC}
}

// Reply6 answers a message of DHCPv6; nil: there is nothing to say. leases are set when
// the answer confirms addresses.
func (s *Server) Reply6(req *dhcpv6.Message) (answer *dhcpv6.Message, leases []Lease) {
	if len(s.addresses6) == 0 || req.Options.ClientID() == nil {
		return nil, nil
	}
	if id := req.Options.ServerID(); id != nil && !id.Equal(duid()) {
		return nil, nil // it talks to another server, which it had before it came here
	}
	switch req.MessageType {
	case dhcpv6.MessageTypeSolicit:
		answer = answer6(req, s.with()...)
		answer.MessageType = dhcpv6.MessageTypeAdvertise
		if req.Options.GetOne(dhcpv6.OptionRapidCommit) != nil {
			dhcpv6.WithRapidCommit(answer)
			answer.MessageType = dhcpv6.MessageTypeReply
		}
		s.assign(req, answer)
	case dhcpv6.MessageTypeRequest, dhcpv6.MessageTypeRenew, dhcpv6.MessageTypeRebind:
		answer = answer6(req, s.with()...)
		s.assign(req, answer)
	case dhcpv6.MessageTypeConfirm:
		answer = s.confirm(req)
	case dhcpv6.MessageTypeInformationRequest:
		answer = answer6(req, s.with()...)
	case dhcpv6.MessageTypeRelease, dhcpv6.MessageTypeDecline:
		answer = answer6(req, status(iana.StatusSuccess, "noted"))
	}
	if answer != nil {
		s.shorten6(answer)
	}
	if answer != nil && answer.MessageType == dhcpv6.MessageTypeReply && answer.Options.OneIANA() != nil {
		for _, p := range s.addresses6 {
			leases = append(leases, Lease{MAC: s.mac.String(), Address: p})
		}
	}
	return answer, leases
}

// answer6 is a reply with what every one has.
func answer6(req *dhcpv6.Message, mods ...dhcpv6.Modifier) *dhcpv6.Message {
	m := &dhcpv6.Message{MessageType: dhcpv6.MessageTypeReply, TransactionID: req.TransactionID}
	m.AddOption(dhcpv6.OptClientID(req.Options.ClientID()))
	m.AddOption(dhcpv6.OptServerID(duid()))
	for _, mod := range mods {
		mod(m)
	}
	return m
}

// with is what every answer tells in addition to addresses.
func (s *Server) with() (mods []dhcpv6.Modifier) {
	if len(s.dns6) > 0 {
		var list []net.IP
		for _, a := range s.dns6 {
			list = append(list, a.AsSlice())
		}
		mods = append(mods, dhcpv6.WithDNS(list...))
	}
	if len(s.search) > 0 {
		mods = append(mods, dhcpv6.WithDomainSearchList(s.search...))
	}
	return mods
}

func status(code iana.StatusCode, text string) dhcpv6.Modifier {
	return dhcpv6.WithOption(&dhcpv6.OptStatusCode{StatusCode: code, StatusMessage: text})
}

// assign puts all addresses into the first association that is asked for; others get none. An address that the guest
// has from elsewhere is taken from it. What no packet has room for is left out: a guest may ask for thousands. Search
// domains, which shorten6 takes off, have no room of their own.
func (s *Server) assign(req, answer *dhcpv6.Message) {
	room := s.room6() - len(answer.ToBytes())
	if list := answer.Options.GetOne(dhcpv6.OptionDomainSearchList); list != nil {
		room += optionHeader + len(list.ToBytes())
	}
	for i, ia := range req.Options.IANA() {
		out := &dhcpv6.OptIANA{IaId: ia.IaId, T1: always, T2: always}
		if i > 0 {
			out.Options.Add(&dhcpv6.OptStatusCode{StatusCode: iana.StatusNoAddrsAvail,
				StatusMessage: "one association has all addresses"})
			if room -= optionHeader + len(out.ToBytes()); room < 0 {
				return
			}
			answer.AddOption(out)
			continue
		}
		for _, p := range s.addresses6 {
			out.Options.Add(&dhcpv6.OptIAAddress{IPv6Addr: p.Addr().AsSlice(), PreferredLifetime: always, ValidLifetime: always})
		}
		room -= optionHeader + len(out.ToBytes())
		for _, had := range ia.Options.Addresses() {
			if s.assigns(had.IPv6Addr) {
				continue
			}
			ends := &dhcpv6.OptIAAddress{IPv6Addr: had.IPv6Addr}
			if n := optionHeader + len(ends.ToBytes()); n <= room {
				out.Options.Add(ends)
				room -= n
			}
		}
		answer.AddOption(out)
	}
}

func (s *Server) assigns(ip net.IP) bool {
	a, ok := netip.AddrFromSlice(ip)
	return ok && slices.ContainsFunc(s.addresses6, func(p netip.Prefix) bool { return p.Addr() == a })
}

// confirm tells a guest whose link was down whether its addresses are still right.
func (s *Server) confirm(req *dhcpv6.Message) *dhcpv6.Message {
	asked := 0
	for _, ia := range req.Options.IANA() {
		for _, a := range ia.Options.Addresses() {
			asked++
			if !s.assigns(a.IPv6Addr) {
				return answer6(req, status(iana.StatusNotOnLink, "another address is the guest's here"))
			}
		}
	}
	if asked == 0 {
		return nil // RFC 8415, 18.3.3
	}
	return answer6(req, status(iana.StatusSuccess, "right"))
}
