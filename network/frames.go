package network

import (
	"encoding/binary"
	"net"
	"net/netip"
)

const (
	etherIPv4 = 0x0800
	etherARP  = 0x0806
	etherRARP = 0x8035
	etherIPv6 = 0x86dd

	arpRequest  = 1
	arpReply    = 2
	rarpRequest = 3
)

// minFrame is what a frame is padded to: 60 bytes before the checksum.
const minFrame = 60

var broadcast = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

func ethernet(dst, src net.HardwareAddr, kind uint16, payload []byte) []byte {
	f := make([]byte, 0, max(minFrame, 14+len(payload)))
	f = append(f, dst...)
	f = append(f, src...)
	f = binary.BigEndian.AppendUint16(f, kind)
	f = append(f, payload...)
	return f[:cap(f)][:max(minFrame, len(f))]
}

func arp(op uint16, sha net.HardwareAddr, spa netip.Addr, tha net.HardwareAddr, tpa netip.Addr) []byte {
	p := []byte{0, 1, 8, 0, 6, 4} // ethernet, IPv4, lengths
	p = binary.BigEndian.AppendUint16(p, op)
	p = append(append(p, sha...), spa.AsSlice()...)
	return append(append(p, tha...), tpa.AsSlice()...)
}

// rarp tells every switch where a MAC is, without any address (RFC 903, as a
// request for the own address).
func rarp(mac net.HardwareAddr) []byte {
	zero := netip.IPv4Unspecified()
	return ethernet(broadcast, mac, etherRARP, arp(rarpRequest, mac, zero, mac, zero))
}

// gratuitousARP is an ARP packet about the sender itself (RFC 5227): some stacks
// listen to requests only, some to replies only.
func gratuitousARP(op uint16, mac net.HardwareAddr, ip netip.Addr) []byte {
	target := net.HardwareAddr{0, 0, 0, 0, 0, 0}
	if op == arpReply {
		target = mac
	}
	return ethernet(broadcast, mac, etherARP, arp(op, mac, ip, target, ip))
}

// allNodes is ff02::1, its MAC below.
var (
	allNodes    = netip.MustParseAddr("ff02::1")
	allNodesMAC = net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}
)

// neighborAdvertisement is an unsolicited one with the override flag (RFC 4861, 7.2.6).
func neighborAdvertisement(mac net.HardwareAddr, ip netip.Addr) []byte {
	icmp := []byte{136, 0, 0, 0, 0x20, 0, 0, 0} // type, code, checksum, override
	icmp = append(icmp, ip.AsSlice()...)
	icmp = append(append(icmp, 2, 1), mac...) // option: target's link-layer address
	binary.BigEndian.PutUint16(icmp[2:], checksum6(ip, allNodes, 58, icmp))

	p := []byte{0x60, 0, 0, 0}
	p = binary.BigEndian.AppendUint16(p, uint16(len(icmp)))
	p = append(p, 58, 255) // ICMPv6; a hop limit of 255 proves that no router was passed
	p = append(append(p, ip.AsSlice()...), allNodes.AsSlice()...)
	return ethernet(allNodesMAC, mac, etherIPv6, append(p, icmp...))
}

// checksum6 is the internet checksum over the pseudo header of RFC 8200 and data.
func checksum6(src, dst netip.Addr, next byte, data []byte) uint16 {
	b := append(src.AsSlice(), dst.AsSlice()...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(data)))
	b = append(append(b, 0, 0, 0, next), data...)
	if len(b)%2 == 1 {
		b = append(b, 0)
	}
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
