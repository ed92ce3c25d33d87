package dhcp

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/rfc1035label"
)

// A message must fit one packet: nothing here fragments. What a guest can do without goes first, of
// a list the last entries: search domains, then names, then more than maxDNS servers.

// leastMessage is what every client of DHCPv4 takes, headers of IP and UDP included, unless its
// option 57 says more (RFC 2131, 2).
const leastMessage = 576

// maxDNS is how many name servers a message names: a resolver asks no more than three.
const maxDNS = 3

// packet is the longest one that the link takes; a NIC without an MTU has ethernet's.
func (s *Server) packet() int { return cmp.Or(s.mtu, 1500) }

// room for the body of an answer to a message.
func (s *Server) room(req *dhcpv4.DHCPv4) int {
	limit := leastMessage
	if most, err := req.MaxMessageSize(); err == nil {
		limit = max(limit, int(most))
	}
	return min(limit, s.packet()) - ipHeader - udpHeader
}

// shorten takes options off an answer until it fits. Addresses and routes stay in any case: New has
// refused a NIC whose routes fit no packet.
func (s *Server) shorten(req, m *dhcpv4.DHCPv4) {
	room := s.room(req)
	tooLong := func() bool { return len(m.ToBytes()) > room }
	for n := len(s.search) - 1; n >= 0 && tooLong(); n-- {
		if n == 0 {
			m.Options.Del(dhcpv4.OptionDNSDomainSearchList)
			break
		}
		m.UpdateOption(dhcpv4.OptDomainSearch(&rfc1035label.Labels{Labels: s.search[:n]}))
	}
	for _, o := range []dhcpv4.OptionCode{dhcpv4.OptionDomainName, dhcpv4.OptionHostName} {
		if tooLong() {
			m.Options.Del(o)
		}
	}
	if dns := m.DNS(); len(dns) > maxDNS && tooLong() {
		m.UpdateOption(dhcpv4.OptDNS(dns[:maxDNS]...))
	}
}

// shorten6 does so with search domains of DHCPv6. Its answers have nothing else that is long.
func (s *Server) shorten6(m *dhcpv6.Message) {
	room := s.room6()
	for n := len(s.search) - 1; n >= 0 && len(m.ToBytes()) > room; n-- {
		m.Options.Del(dhcpv6.OptionDomainSearchList)
		if n > 0 {
			m.AddOption(dhcpv6.OptDomainSearchList(&rfc1035label.Labels{Labels: s.search[:n]}))
		}
	}
}

// room6 is for the body of an answer of DHCPv6.
func (s *Server) room6() int { return s.packet() - ip6Header - udpHeader }

// tooLong reports whether a reply fits no packet. An answer has some of what was asked, such as the guest's id, and a
// tap takes longer frames of a guest than of us. Such a question is not answered.
func (s *Server) tooLong(replies [][]byte) bool {
	return slices.ContainsFunc(replies, func(f []byte) bool { return len(f) > etherHeader+s.packet() })
}

// fits refuses what no packet can tell.
func (s *Server) fits() error {
	if s.address.IsValid() {
		m, err := dhcpv4.New(dhcpv4.WithMessageType(dhcpv4.MessageTypeAck),
			dhcpv4.WithOption(dhcpv4.OptIPAddressLeaseTime(forever)))
		if err != nil {
			return err
		}
		for _, o := range s.options {
			m.UpdateOption(o)
		}
		s.shorten(m, m)
		if n, room := len(m.ToBytes()), s.packet()-ipHeader-udpHeader; n > room {
			return fmt.Errorf("the answer has %d bytes, a packet %d: give the interface fewer IPv4 routes: %w", n, room,
				errdefs.ErrFailedPrecondition)
		}
	}
	for _, r := range s.routers {
		if n, room := len(s.advertisement(r)), s.packet()-ip6Header; n > room {
			return fmt.Errorf("the advertisement of a router has %d bytes, a packet %d: give the interface fewer IPv6 "+
				"addresses and routes: %w", n, room, errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}
