package dhcp

import (
	"encoding/binary"
	"net"
	"net/netip"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// Ports of DHCPv4.
const (
	ServerPort = 67
	ClientPort = 68
)

const (
	etherIPv4 = 0x0800
	protoUDP  = 17

	etherHeader = 14
	ipHeader    = 20
	udpHeader   = 8
)

// ServerMAC is the answers' source. No guest sends to it: a guest that renews by unicast asks
// for the MAC of the gateway, and its frame is met on the way there.
var ServerMAC = net.HardwareAddr{0x02, 0x67, 0x77, 0x64, 0x68, 0x63}

// Frame answers an ethernet frame of the guest. What is no question for a server or a
// router is not answered.
func (s *Server) Frame(frame []byte) (replies [][]byte, leases []Lease, err error) {
	if len(frame) >= etherHeader && binary.BigEndian.Uint16(frame[12:]) == etherIPv6 {
		replies, leases = s.frames6(frame)
		if s.tooLong(replies) {
			return nil, nil, nil
		}
		return replies, leases, nil
	}
	body := payload(frame)
	if body == nil {
		return nil, nil, nil
	}
	req, err := dhcpv4.FromBytes(body)
	if err != nil {
		return nil, nil, nil //nolint:nilerr // a guest may send what it likes
	}
	m, lease, err := s.Reply(req)
	if err != nil || m == nil {
		return nil, nil, err
	}
	if lease != nil {
		leases = []Lease{*lease}
	}
	if replies = [][]byte{s.frame(m)}; s.tooLong(replies) {
		return nil, nil, nil
	}
	return replies, leases, nil
}

// payload of an unfragmented UDP datagram to the server's port.
func payload(f []byte) []byte {
	if len(f) < etherHeader+ipHeader+udpHeader || binary.BigEndian.Uint16(f[12:]) != etherIPv4 {
		return nil
	}
	ip := f[etherHeader:]
	if ip[0] != 0x45 || ip[9] != protoUDP || binary.BigEndian.Uint16(ip[6:])&0x3fff != 0 {
		return nil
	}
	udp := ip[ipHeader:]
	size := int(binary.BigEndian.Uint16(udp[4:]))
	if binary.BigEndian.Uint16(udp[2:]) != ServerPort || size < udpHeader || size > len(udp) {
		return nil
	}
	return udp[udpHeader:size]
}

// frame goes to the guest's MAC and to the address that it will have. If the guest cannot take a
// unicast yet, it goes to the broadcast address (RFC 2131, 4.1).
func (s *Server) frame(m *dhcpv4.DHCPv4) []byte {
	to := netip.AddrFrom4([4]byte{255, 255, 255, 255})
	if your, ok := netip.AddrFromSlice(m.YourIPAddr.To4()); ok && !m.IsBroadcast() && !your.IsUnspecified() {
		to = your
	} else if client, ok := netip.AddrFromSlice(m.ClientIPAddr.To4()); ok && !m.IsBroadcast() && !client.IsUnspecified() {
		to = client
	}
	body := m.ToBytes()
	f := append(append([]byte{}, s.mac...), ServerMAC...)
	f = binary.BigEndian.AppendUint16(f, etherIPv4)
	ip := []byte{0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, protoUDP, 0, 0} // not to be fragmented
	binary.BigEndian.PutUint16(ip[2:], uint16(ipHeader+udpHeader+len(body)))
	ip = append(append(ip, s.id.AsSlice()...), to.AsSlice()...)
	binary.BigEndian.PutUint16(ip[10:], checksum(ip))
	f = append(f, ip...)
	f = binary.BigEndian.AppendUint16(f, ServerPort)
	f = binary.BigEndian.AppendUint16(f, ClientPort)
	f = binary.BigEndian.AppendUint16(f, uint16(udpHeader+len(body)))
	f = append(f, 0, 0) // no checksum: IPv4 allows it
	return append(f, body...)
}

// checksum of RFC 1071 over an even number of bytes.
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
