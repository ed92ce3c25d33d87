package network

import (
	"context"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	gatewayBound = time.Second // in all, for gateways that do not answer
	gatewayLook  = 10 * time.Millisecond
	discardPort  = 9
)

// FindGateways asks, while the namespace still has its addresses, for the MACs of those
// IPv6 gateways that are not link-local: a guest that is to be told of them by a router's
// advertisement needs them (package dhcp). It returns links with what was found; a
// gateway that does not answer is left out.
func FindGateways(ctx context.Context, netnsPath string, links []Link) ([]Link, error) {
	s, err := openSession(netnsPath)
	if err != nil {
		return nil, err
	}
	defer s.close()
	ctx, cancel := context.WithTimeout(ctx, gatewayBound)
	defer cancel()
	out := make([]Link, len(links))
	for i, l := range links {
		out[i] = l
		for _, r := range l.NIC.Routes {
			if !r.Gateway.Is6() || r.Gateway.IsLinkLocalUnicast() || out[i].Neighbors[r.Gateway] != "" {
				continue
			}
			mac := s.neighbor(ctx, l.Found.Index, r.Gateway)
			if mac == "" {
				continue
			}
			if out[i].Neighbors == nil {
				out[i].Neighbors = map[netip.Addr]string{}
			}
			out[i].Neighbors[r.Gateway] = mac
		}
	}
	return out, nil
}

// neighbor makes the kernel ask, by a datagram that no program reads, and looks for what it was told; empty: no answer
// came.
func (s *session) neighbor(ctx context.Context, index int, gateway netip.Addr) string {
	err := within(s.ns, func() error {
		conn, err := net.Dial("udp6", netip.AddrPortFrom(gateway, discardPort).String())
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Write([]byte{0})
		return err
	})
	for err == nil && ctx.Err() == nil {
		var all []netlink.Neigh
		all, err = dump(func() ([]netlink.Neigh, error) { return s.nl.NeighList(index, unix.AF_INET6) })
		for _, n := range all {
			if n.IP.Equal(gateway.AsSlice()) && len(n.HardwareAddr) == 6 {
				return n.HardwareAddr.String()
			}
		}
		t := time.NewTimer(gatewayLook)
		select {
		case <-ctx.Done():
		case <-t.C:
		}
		t.Stop()
	}
	return ""
}
