package dhcp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv6"
)

// The longest frame that a tap takes from a guest makes no answer that is longer than a packet: a length of 16 bits
// would overflow, and the write of it fails. What can be told in one packet is told.
func TestAnswersFitAPacket(t *testing.T) {
	s := server(t)
	many := solicit(t, dhcpv6.MessageTypeSolicit, dhcpv6.WithRapidCommit)
	for i := range 80 {
		many.AddOption(&dhcpv6.OptIANA{IaId: [4]byte{1, byte(i >> 8), byte(i)}})
	}
	most := solicit(t, dhcpv6.MessageTypeSolicit)
	for i := range 3900 {
		most.AddOption(&dhcpv6.OptIANA{IaId: [4]byte{1, byte(i >> 8), byte(i)}})
	}
	had := solicit(t, dhcpv6.MessageTypeRenew)
	ia := &dhcpv6.OptIANA{IaId: [4]byte{9}}
	for i := range 2000 {
		ia.Options.Add(&dhcpv6.OptIAAddress{IPv6Addr: append(net.ParseIP("fd01::")[:14], byte(i>>8), byte(i))})
	}
	had.Options.Del(dhcpv6.OptionIANA)
	had.AddOption(ia)
	for name, m := range map[string]*dhcpv6.Message{"80 associations": many, "3900 associations": most,
		"2000 addresses": had} {
		replies, _, err := s.Frame(udp6(m))
		if err != nil || len(replies) != 1 || len(replies[0]) > etherHeader+s.packet() {
			t.Errorf("%s: %d bytes: %v", name, length(replies), err)
			continue
		}
		ip := replies[0][etherHeader:]
		if n := int(binary.BigEndian.Uint16(ip[4:])); ip6Header+n != len(ip) || !valid6(ip) {
			t.Errorf("%s: a length of %d in a packet of %d", name, n, len(ip))
		}
		answer, err := dhcpv6.MessageFromBytes(ip[ip6Header+udpHeader:])
		if err != nil || len(addresses(answer)) == 0 || addresses(answer)[0] != "fd00::2" {
			t.Errorf("%s: %v: %v", name, addresses(answer), err)
		}
	}

	long := solicit(t, dhcpv6.MessageTypeSolicit, dhcpv6.WithRapidCommit) // whose id each answer has
	long.UpdateOption(dhcpv6.OptClientID(&dhcpv6.DUIDOpaque{Type: 7, Data: bytes.Repeat([]byte{7}, 60000)}))
	relay := dhcpv4.OptGeneric(dhcpv4.OptionRelayAgentInformation, bytes.Repeat([]byte{1, 1, 7}, 1000))
	ack := discover(t, dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest),
		dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(net.IPv4(10, 88, 0, 5))), dhcpv4.WithOption(relay))
	for name, frame := range map[string][]byte{"of DHCPv6": udp6(long), "of DHCPv4": request(t, ack)} {
		replies, leases, err := s.Frame(frame)
		if err != nil || length(replies) > etherHeader+s.packet() || len(replies) == 0 && len(leases) > 0 {
			t.Errorf("%s: %d bytes, leases %v: %v", name, length(replies), leases, err)
		}
	}
}

// A search list that fills the packet gives way to the end of the addresses of another node: the guest would keep them
// for ever.
func TestSearchListGivesWayToAddresses(t *testing.T) {
	s := server(t)
	s.search = nil
	for i := range 60 {
		s.search = append(s.search, fmt.Sprintf("a-long-name-of-a-namespace-%02d.svc.example", i))
	}
	had := solicit(t, dhcpv6.MessageTypeRenew)
	had.Options.Del(dhcpv6.OptionIANA)
	had.AddOption(&dhcpv6.OptIANA{IaId: [4]byte{9}, Options: dhcpv6.IdentityOptions{Options: dhcpv6.Options{
		&dhcpv6.OptIAAddress{IPv6Addr: net.ParseIP("fd01::9"), ValidLifetime: always}}}})
	answer, _ := s.Reply6(had)
	ended := false
	for _, a := range answer.Options.OneIANA().Options.Addresses() {
		ended = ended || a.IPv6Addr.Equal(net.ParseIP("fd01::9")) && a.ValidLifetime == 0 && a.PreferredLifetime == 0
	}
	if n := len(answer.ToBytes()); !ended || n > s.room6() || answer.Options.DomainSearchList() == nil {
		t.Errorf("%d bytes of %d, search %v: %v", n, s.room6(), answer.Options.DomainSearchList(), answer.Options.OneIANA())
	}
}

func length(frames [][]byte) (n int) {
	for _, f := range frames {
		n = max(n, len(f))
	}
	return n
}

// udp6 is a guest's message in a frame.
func udp6(m *dhcpv6.Message) []byte {
	data := m.ToBytes()
	udp := binary.BigEndian.AppendUint16(nil, ClientPort6)
	udp = binary.BigEndian.AppendUint16(udp, ServerPort6)
	udp = binary.BigEndian.AppendUint16(udp, uint16(udpHeader+len(data)))
	return packet6(mac, ServerMAC, guestLink, serverLink, protoUDP, 64, 6, append(append(udp, 0, 0), data...))
}
