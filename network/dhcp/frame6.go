package dhcp

import (
	"encoding/binary"
	"net"
	"net/netip"

	"github.com/insomniacslk/dhcp/dhcpv6"
)

// frames6 answers an IPv6 frame of the guest.
func (s *Server) frames6(f []byte) (replies [][]byte, leases []Lease) {
	if len(s.addresses6) == 0 || len(f) < etherHeader+ip6Header+8 || [6]byte(f[6:12]) != [6]byte(s.mac) {
		return nil, nil
	}
	ip := f[etherHeader:]
	size := int(binary.BigEndian.Uint16(ip[4:]))
	if ip[0]>>4 != 6 || size < 8 || ip6Header+size > len(ip) {
		return nil, nil
	}
	from, _ := netip.AddrFromSlice(ip[8:24])
	body := ip[ip6Header : ip6Header+size]
	switch {
	case ip[6] == protoUDP && binary.BigEndian.Uint16(body[2:]) == ServerPort6:
		return s.datagram6(from, body[udpHeader:])
	case ip[6] != protoICMP6 || ip[7] != 255: // a hop limit of 255 proves that no router was passed
	case body[0] == RouterSolicit:
		return s.Advertisements(), nil
	case body[0] == NeighborSolicit && len(body) >= 24:
		target, _ := netip.AddrFromSlice(body[8:24])
		if reply := s.neighbor(from, target); reply != nil {
			replies = append(replies, reply)
		}
	}
	return replies, nil
}

func (s *Server) datagram6(from netip.Addr, body []byte) (replies [][]byte, leases []Lease) {
	req, err := dhcpv6.MessageFromBytes(body)
	if err != nil || !from.IsLinkLocalUnicast() {
		return nil, nil //nolint:nilerr // a guest may send what it likes
	}
	answer, leases := s.Reply6(req)
	if answer == nil {
		return nil, nil
	}
	data := answer.ToBytes()
	udp := binary.BigEndian.AppendUint16(nil, ServerPort6)
	udp = binary.BigEndian.AppendUint16(udp, ClientPort6)
	udp = binary.BigEndian.AppendUint16(udp, uint16(udpHeader+len(data)))
	udp = append(append(udp, 0, 0), data...)
	return [][]byte{packet6(ServerMAC, s.mac, serverLink, from, protoUDP, 64, 6, udp)}, leases
}

// frame6 carries a message of ICMPv6.
func frame6(srcMAC, dstMAC net.HardwareAddr, src, dst netip.Addr, message []byte) []byte {
	return packet6(srcMAC, dstMAC, src, dst, protoICMP6, 255, 2, message)
}

// packet6 fills in the checksum, which body has room for at sum.
func packet6(srcMAC, dstMAC net.HardwareAddr, src, dst netip.Addr, next, hops byte, sum int, body []byte) []byte {
	f := append(append([]byte{}, dstMAC...), srcMAC...)
	f = binary.BigEndian.AppendUint16(f, etherIPv6)
	f = append(f, 0x60, 0, 0, 0)
	f = binary.BigEndian.AppendUint16(f, uint16(len(body)))
	f = append(f, next, hops)
	f = append(append(f, src.AsSlice()...), dst.AsSlice()...)

	pseudo := append(src.AsSlice(), dst.AsSlice()...)
	pseudo = binary.BigEndian.AppendUint32(pseudo, uint32(len(body)))
	pseudo = append(append(pseudo, 0, 0, 0, next), body...)
	if len(pseudo)%2 == 1 {
		pseudo = append(pseudo, 0)
	}
	value := checksum(pseudo)
	if value == 0 {
		value = 0xffff // 0 would say that there is none, which IPv6 forbids
	}
	binary.BigEndian.PutUint16(body[sum:], value)
	return append(f, body...)
}
