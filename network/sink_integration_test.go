//go:build integration

package network

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/insomniacslk/dhcp/dhcpv4"

	"godwit.dev/godwit/network/dhcp"
)

// client is a guest with a real DHCP client: a namespace whose eth0 is wired to the
// attachment's tap, as a VMM would.
type client struct {
	ns      string
	foreign atomic.Int64 // frames to the client's port that godwit did not send
}

func newClient(t *testing.T, a *Attachment, nic string) *client {
	t.Helper()
	c := &client{ns: newNS(t, "guest")}
	s, err := openSession(c.ns)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	inside, err := s.openTap("eth0", sinkFlags)
	if err != nil {
		t.Fatal(err)
	}
	script(t, c.ns, "ip link set eth0 address "+nic+" up")
	g := newGuest(t, a, 0)
	copies := make(chan struct{}, 2)
	go func() { // out of the guest
		defer func() { copies <- struct{}{} }()
		buf := make([]byte, 1<<16)
		for {
			n, err := inside.Read(buf)
			if err != nil || g.send(buf[:n]) != nil {
				return
			}
		}
	}()
	go func() { // into it
		defer func() { copies <- struct{}{} }()
		buf := make([]byte, 1<<16)
		for {
			n, err := g.tap.Read(buf)
			if err != nil {
				return
			}
			frame := buf[vnetHeader:n]
			if frame[12] == 8 && frame[23] == 17 && binary.BigEndian.Uint16(frame[36:]) == dhcp.ClientPort &&
				!bytes.Equal(frame[6:12], dhcp.ServerMAC) {
				c.foreign.Add(1)
			}
			if bytes.HasPrefix(frame[22:], foreignRouter.AsSlice()) {
				c.foreign.Add(1)
			}
			if _, err := inside.Write(frame); err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		inside.Close()
		_ = g.tap.SetReadDeadline(time.Now())
		<-copies
		<-copies
	})
	return c
}

// lease runs busybox's client once, and answers the address that it configured.
func (c *client) lease(t *testing.T, more ...string) string {
	t.Helper()
	dir := t.TempDir()
	told := filepath.Join(dir, "told")
	hook := filepath.Join(dir, "hook")
	text := "#!/bin/sh\n[ \"$1\" = bound ] || exit 0\nip addr flush dev $interface\nip addr add $ip/$mask dev " +
		"$interface\n" +
		"ip route add default via $router\nip link set $interface mtu $mtu\necho $ip/$mask $router $dns $hostname >" +
		told + "\n"
	if err := os.WriteFile(hook, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	sh(t, c.ns, append([]string{"busybox", "udhcpc", "-i", "eth0", "-n", "-q", "-f", "-t", "10", "-T", "1", "-s", hook,
		"-O", "mtu"}, more...)...)
	data, err := os.ReadFile(told)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

func withSink(l *Link) { l.Sink = "dhcp0" }

// A real client gets the address of the CNI plugin from godwit, and godwit sees the lease. Its question does not leave
// the node, and no answer of a foreign server comes in. The rest of the network works.
func TestServe(t *testing.T) {
	f := newFabric(t, 1, 1400)
	before := state(t, f.nodes[0])
	a, links := f.attach(t, 0, withSink)
	heard := foreignServer(t, f.ns, links[0].NIC.MAC)
	leases := serve(t, a, links[0])
	if err := a.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	guest := newClient(t, a, links[0].NIC.MAC)
	if got, want := guest.lease(t), "10.88.0.2/24 10.88.0.1 10.88.0.53 web"; got != want {
		t.Errorf("the client was told %q, want %q", got, want)
	}
	if lease := <-leases; lease.Address != netip.MustParsePrefix("10.88.0.2/24") || lease.MAC != links[0].NIC.MAC {
		t.Errorf("lease %+v", lease)
	}
	sh(t, guest.ns, "busybox", "ping", "-c", "1", "-W", "5", "10.88.0.1")
	// A client that remembers another address is refused, asks anew, and gets its own.
	if got := guest.lease(t, "-r", "10.66.0.9"); !strings.HasPrefix(got, "10.88.0.2/24 ") {
		t.Errorf("a client that asked for another address was told %q", got)
	}
	<-leases
	if n := heard.Load(); n != 0 {
		t.Errorf("%d of the guest's messages reached a server on the network", n)
	}
	if n := guest.foreign.Load(); n != 0 {
		t.Errorf("%d messages of another server reached the guest", n)
	}
	if err := a.Detach(t.Context()); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(before, state(t, f.nodes[0])); diff != "" {
		t.Errorf("namespace after Detach:\n%s", diff)
	}
}

func serve(t *testing.T, a *Attachment, link Link) <-chan dhcp.Lease {
	t.Helper()
	server, err := dhcp.New(dhcp.Config{
		NIC: link.NIC, Hostname: "web", DNS: []netip.Addr{netip.MustParseAddr("10.88.0.53"), netip.MustParseAddr("fd88::53")},
		Search: []string{"example.org"}, Neighbors: link.Neighbors,
	})
	if err != nil {
		t.Fatal(err)
	}
	leases, done := make(chan dhcp.Lease, 16), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { done <- a.Serve(ctx, link, server, func(l dhcp.Lease) { leases <- l }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("serve: %v", err)
		}
	})
	return leases
}

// foreignServer offers everybody an address, asked or not, and counts who asks.
func foreignServer(t *testing.T, ns, mac string) *atomic.Int64 {
	t.Helper()
	var heard atomic.Int64
	var conn net.PacketConn
	err := Do(ns, func() (err error) {
		conn, err = net.ListenPacket("udp4", ":67")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop); conn.Close() })
	go func() {
		buf := make([]byte, 1500)
		for {
			if _, _, err := conn.ReadFrom(buf); err != nil {
				return
			}
			heard.Add(1)
		}
	}()
	hw, _ := net.ParseMAC(mac)
	request, err := dhcpv4.NewDiscovery(hw)
	if err != nil {
		t.Fatal(err)
	}
	offer, err := dhcpv4.NewReplyFromRequest(request, dhcpv4.WithMessageType(dhcpv4.MessageTypeOffer),
		dhcpv4.WithYourIP(net.IPv4(10, 88, 0, 66)))
	if err != nil {
		t.Fatal(err)
	}
	var sent atomic.Int64
	go func() {
		for {
			if _, err := conn.WriteTo(offer.ToBytes(), &net.UDPAddr{IP: net.IPv4(10, 88, 0, 255), Port: 68}); err == nil {
				sent.Add(1)
			}
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	eventually(t, "the foreign server offers", func() bool { return sent.Load() > 0 })
	return &heard
}

// A shim that takes over serves on: the sink and its filters are still there.
func TestServeAfterOpen(t *testing.T) {
	f := newFabric(t, 1, 1500)
	a, links := f.attach(t, 0, withSink)
	if err := a.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	guest := newClient(t, a, links[0].NIC.MAC) // has the tap as a VMM has it
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	next, err := Open(t.Context(), f.nodes[0], links)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = next.Detach(context.WithoutCancel(t.Context())) })
	leases := serve(t, next, links[0])
	if got := guest.lease(t); !strings.HasPrefix(got, "10.88.0.2/24 ") {
		t.Errorf("the client was told %q", got)
	}
	<-leases
}

// Whichever step of a sink fails, the namespace is as found.
func TestSinkFailsAtEachStep(t *testing.T) {
	f := newFabric(t, 1, 1500)
	ns := f.nodes[0]
	sure(t, ns)
	before := state(t, ns)
	links := mustRead(t, ns)
	withSink(&links[0])
	boom := errors.New("boom")
	drained := false // between the sink's first step and the first that is not a sink's
	for at := 1; ; at++ {
		steps := 0
		drained = false
		a, err := attach(t.Context(), ns, owner, links, func(step string) error {
			drained = drained && step != "redirect eth0" || strings.HasSuffix(step, " dhcp0")
			if !drained {
				return nil
			}
			if steps++; steps == at {
				return boom
			}
			return nil
		})
		if err == nil {
			err = a.Detach(t.Context())
		} else if errors.Is(err, boom) {
			err = nil
		}
		if err != nil {
			t.Fatalf("step %d: %v", at, err)
		}
		if diff := cmp.Diff(before, state(t, ns)); diff != "" {
			t.Fatalf("step %d:\n%s", at, diff)
		}
		if a != nil {
			if at < 8 {
				t.Errorf("only %d steps: the hook is not everywhere", at)
			}
			return
		}
	}
}
