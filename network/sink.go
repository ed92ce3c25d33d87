package network

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/network/dhcp"
)

// A sink takes DHCP, and what routers say of themselves, off the wire between a guest and
// the network, both ways: the guest's questions get an answer from Serve and never leave,
// the words of foreign servers and routers end there. What is written to the sink goes to
// the guest. The kernel needs no other tc action than the one that redirects.

// Words of an IPv4 header by offset, and what of them says "UDP, to this port". The port's place depends on the
// header's length: with IP options, which no DHCP server is known to send, a datagram to a client is taken whatever its
// port is.
const (
	atVersion  = 0 // version, header length in words
	atProtocol = 8 // TTL, protocol, checksum
	atPorts    = 20
)

// Words of an IPv6 header, and of what follows it.
const (
	atNext    = 4 // length, next header, hop limit
	atSource  = 8
	atPayload = 40
	atTarget  = 48 // of a neighbour solicitation
)

func key(offset int32, value, mask uint32) netlink.TcU32Key {
	return netlink.TcU32Key{Off: offset, Val: value, Mask: mask}
}

var (
	isUDP     = key(atProtocol, 17<<16, 0xff<<16)
	isIPv6    = key(atVersion, 6<<28, 0xf<<28)
	isUDP6    = key(atNext, 17<<8, 0xff<<8)
	isICMP6   = key(atNext, 58<<8, 0xff<<8)
	toServers = [][]netlink.TcU32Key{
		{key(atVersion, 0x45<<24, 0xff<<24), isUDP, key(atPorts, dhcp.ServerPort, 0xffff)},
		{isIPv6, isUDP6, key(atPayload, dhcp.ServerPort6, 0xffff)},
		{isIPv6, isICMP6, key(atPayload, dhcp.RouterSolicit<<24, 0xff<<24)},
		append([]netlink.TcU32Key{isIPv6, isICMP6, key(atPayload, dhcp.NeighborSolicit<<24, 0xff<<24)}, solicitations()...),
	}
	toClients = append([][]netlink.TcU32Key{
		{key(atVersion, 0x45<<24, 0xff<<24), isUDP, key(atPorts, dhcp.ClientPort, 0xffff)},
		{key(atVersion, 0x46<<24, 0xfe<<24), isUDP},
		{key(atVersion, 0x48<<24, 0xf8<<24), isUDP},
		{isIPv6, isUDP6, key(atPayload, dhcp.ClientPort6, 0xffff)},
		{isIPv6, isICMP6, key(atPayload, dhcp.RouterAdvert<<24, 0xff<<24)},
	}, hiddenAdvertisements()...)
)

// solicitations are the words of a solicitation for an address that Serve answers for.
func solicitations() (keys []netlink.TcU32Key) {
	prefix := dhcp.StandIns().Addr().AsSlice()
	mask := net.CIDRMask(dhcp.StandIns().Bits(), 128)
	for i := 0; i < len(prefix); i += 4 {
		keys = append(keys, key(int32(atTarget+i), binary.BigEndian.Uint32(prefix[i:]), binary.BigEndian.Uint32(mask[i:])))
	}
	return keys
}

// extensions are the headers that may lie between an IPv6 header and what it carries: hop-by-hop,
// routing, fragment, authentication, destination options (RFC 8200).
var extensions = []uint32{0, 43, 44, 51, 60}

// hiddenAdvertisements are advertisements of routers after extension headers, which only an attacker sends (RFC 7113):
// a hop limit of 255, as every guest demands of an advertisement, and a source on the link. Listener queries have a hop
// limit of 1.
func hiddenAdvertisements() (all [][]netlink.TcU32Key) {
	for _, next := range extensions {
		all = append(all, []netlink.TcU32Key{isIPv6, key(atNext, next<<8|255, 0xffff), key(atSource, 0xfe80<<16, 0xffc0<<16)})
	}
	return all
}

// drains reports whether a filter with these keys is one that leads to a sink.
func drains(keys []netlink.TcU32Key) bool {
	same := func(k []netlink.TcU32Key) bool { return slices.Equal(k, keys) }
	return slices.ContainsFunc(toServers, same) || slices.ContainsFunc(toClients, same)
}

// addSink puts the sink of a link in place, before anything else is redirected.
func (s *session) addSink(ctx context.Context, link Link, iface, tap netlink.Link) error {
	if err := s.disableIPv6(ctx, link.Sink); err != nil {
		return err
	}
	sink, err := s.link(link.Sink)
	if err != nil {
		return err
	}
	err = s.step(ctx, "set up", link.Sink, func() error { return s.nl.LinkSetUp(sink) })
	if err != nil {
		return err
	}
	if err := s.redirect(ctx, sink, tap); err != nil {
		return err
	}
	for _, keys := range toServers {
		if err := s.redirectSome(ctx, tap, sink, keys); err != nil {
			return err
		}
	}
	for _, keys := range toClients {
		if err := s.redirectSome(ctx, iface, sink, keys); err != nil {
			return err
		}
	}
	return nil
}

// advertiseMax is the longest time between two unasked advertisements of a router; the
// first ones come sooner, because the guest may not have been there.
const (
	advertiseMin = time.Second
	advertiseMax = 256 * time.Second
)

// advertise tells the guest of its routers, again and again: one that slept may have
// forgotten them.
func advertise(ctx context.Context, sink *os.File, server *dhcp.Server) {
	for pause := advertiseMin; ; pause = min(2*pause, advertiseMax) {
		if !deliver(sink, server.Advertisements()) {
			return // Serve meets the same
		}
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
	}
}

// Serve answers the DHCP of the guest on a link that has a sink, until ctx ends or the attachment is closed. It is the
// guest's router as far as words go, and tells each lease. leased must not block.
func (a *Attachment) Serve(ctx context.Context, link Link, server *dhcp.Server, leased func(dhcp.Lease)) error {
	sink, err := a.sink(link)
	if err != nil {
		return fmt.Errorf("serve DHCP on %s: %w", link.Interface, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = sink.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	routerCtx, cancel := context.WithCancel(ctx)
	var router sync.WaitGroup
	router.Go(func() { advertise(routerCtx, sink, server) })
	defer router.Wait()
	defer cancel()
	buf := make([]byte, 1<<16)
	for {
		n, err := sink.Read(buf)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case sinkGone(err):
			return nil
		case err != nil:
			return fmt.Errorf("serve DHCP on %s: %w", link.Interface, err)
		}
		replies, leases, err := server.Frame(buf[:n])
		if err != nil {
			return fmt.Errorf("serve DHCP on %s: %w", link.Interface, err)
		}
		if !deliver(sink, replies) {
			return nil
		}
		for _, lease := range leases {
			leased(lease)
		}
	}
}

// deliver writes frames to the guest; false: the sink is gone. A frame that is not taken is lost, as by a tap that is
// down, and the guest asks again. What one process of it asks does not end the server of all.
func deliver(sink io.Writer, frames [][]byte) bool {
	for _, f := range frames {
		if _, err := sink.Write(f); sinkGone(err) {
			return false
		}
	}
	return true
}

// sinkGone reports whether a sink is closed, or detached.
func sinkGone(err error) bool { return errors.Is(err, fs.ErrClosed) || errors.Is(err, unix.EBADFD) }

// sink answers the open sink of a link; after Open it is opened here.
func (a *Attachment) sink(link Link) (*os.File, error) {
	if link.Sink == "" {
		return nil, fmt.Errorf("it has no sink: %w", errdefs.ErrFailedPrecondition)
	}
	return a.open(link, link.Sink, sinkFlags)
}
