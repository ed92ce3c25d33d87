package network

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/network/dhcp"
)

// A sink takes DHCP messages off the wire between a guest and the network, both ways: the
// guest's get an answer from Serve and never leave, foreign servers' end there. What is
// written to the sink goes to the guest. The kernel needs no other tc action than the one
// that redirects.

// Words of an IPv4 header by offset, and what of them says "UDP, to this port". The port's
// place depends on the header's length: with IP options, which nobody's DHCP has, a
// datagram to a client is taken whatever its port is.
const (
	atVersion  = 0 // version, header length in words
	atProtocol = 8 // TTL, protocol, checksum
	atPorts    = 20
)

func key(offset int32, value, mask uint32) netlink.TcU32Key {
	return netlink.TcU32Key{Off: offset, Val: value, Mask: mask}
}

var (
	isUDP     = key(atProtocol, 17<<16, 0xff<<16)
	toServers = [][]netlink.TcU32Key{
		{key(atVersion, 0x45<<24, 0xff<<24), isUDP, key(atPorts, dhcp.ServerPort, 0xffff)},
	}
	toClients = [][]netlink.TcU32Key{
		{key(atVersion, 0x45<<24, 0xff<<24), isUDP, key(atPorts, dhcp.ClientPort, 0xffff)},
		{key(atVersion, 0x46<<24, 0xfe<<24), isUDP},
		{key(atVersion, 0x48<<24, 0xf8<<24), isUDP},
	}
)

// drains reports whether a filter with these keys is one that leads to a sink.
func drains(keys []netlink.TcU32Key) bool {
	same := func(k []netlink.TcU32Key) bool { return slices.Equal(k, keys) }
	return slices.ContainsFunc(toServers, same) || slices.ContainsFunc(toClients, same)
}

// drain puts the sink of a link in place, before anything else is redirected.
func (s *session) drain(ctx context.Context, link Link, iface, tap netlink.Link) error {
	if err := s.silence(ctx, link.Sink); err != nil {
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

// Serve answers the DHCP of the guest on a link that has a sink, and tells each lease,
// until ctx ends or the attachment is closed. leased must not block.
func (a *Attachment) Serve(ctx context.Context, link Link, server *dhcp.Server, leased func(dhcp.Lease)) error {
	sink, err := a.sink(link)
	if err != nil {
		return fmt.Errorf("serve DHCP on %s: %w", link.Interface, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = sink.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buf := make([]byte, 1<<16)
	for {
		n, err := sink.Read(buf)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, fs.ErrClosed), errors.Is(err, unix.EBADFD): // closed, or detached
			return nil
		case err != nil:
			return fmt.Errorf("serve DHCP on %s: %w", link.Interface, err)
		}
		reply, lease, err := server.Frame(buf[:n])
		if err != nil {
			return fmt.Errorf("serve DHCP on %s: %w", link.Interface, err)
		}
		if reply == nil {
			continue
		}
		// A tap that is down drops it, and the guest asks again.
		if _, err := sink.Write(reply); err != nil && !errors.Is(err, unix.EIO) {
			return fmt.Errorf("serve DHCP on %s: %w", link.Interface, err)
		}
		if lease != nil {
			leased(*lease)
		}
	}
}

// sink answers the open sink of a link; after Open it is opened here.
func (a *Attachment) sink(link Link) (*os.File, error) {
	if link.Sink == "" {
		return nil, fmt.Errorf("it has no sink: %w", errdefs.ErrFailedPrecondition)
	}
	if err := a.use(); err != nil {
		return nil, err
	}
	defer a.mu.Unlock()
	if f := a.sinks[link.Sink]; f != nil {
		return f, nil
	}
	f, err := a.s.openTap(link.Sink, sinkFlags)
	if err != nil {
		return nil, err
	}
	a.sinks[link.Sink] = f
	return f, nil
}
