//go:build integration

package network

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

func TestTraffic(t *testing.T) {
	for _, mtu := range []int{1400, 1500, 9000} {
		t.Run(fmt.Sprint(mtu), func(t *testing.T) {
			f := newFabric(t, 1, mtu)
			a, _ := f.attach(t, 0)
			if err := a.Up(t.Context()); err != nil {
				t.Fatal(err)
			}
			newGuest(t, a, 0).serve(t)
			if err := echo(f.ns, "10.88.0.2", mtu-28, 10*time.Second); err != nil {
				t.Error(err)
			}
			if err := echo(f.ns, "fd88::2", mtu-48, 10*time.Second); err != nil {
				t.Error(err)
			}
		})
	}
}

// wire listens to everything that reaches the switch of a fabric.
type wire struct{ fd int }

func listen(t *testing.T, ns, dev string) wire {
	t.Helper()
	w := wire{-1}
	err := Do(ns, func() (err error) {
		iface, err := net.InterfaceByName(dev)
		if err != nil {
			return err
		}
		all := binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})
		if w.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
			return err
		}
		return unix.Bind(w.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: iface.Index})
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(w.fd) })
	return w
}

// drain gives the frames that have arrived from that MAC, or from any.
func (w wire) drain(from string) (frames [][]byte) {
	mac, _ := net.ParseMAC(from)
	buf := make([]byte, 1<<16)
	for {
		n, _, err := unix.Recvfrom(w.fd, buf, 0)
		if err != nil {
			return frames
		}
		if n >= 14 && (from == "" || bytes.Equal(buf[6:12], mac)) {
			frames = append(frames, slices.Clone(buf[:n]))
		}
	}
}

// Nothing leaves before Up, nothing after Down, all is well after another Up.
func TestNothingLeavesWhileDown(t *testing.T) {
	f := newFabric(t, 1, 1500)
	a, links := f.attach(t, 0)
	g := newGuest(t, a, 0)
	w := listen(t, f.ns, "port0")
	mac, probe := links[0].NIC.MAC, rarp(g.mac)
	try := func() error { return g.send(probe) }
	w.drain(mac)
	if err := try(); !errors.Is(err, unix.EIO) {
		t.Errorf("frame before Up: %v", err)
	}
	if err := a.Announce(t.Context()); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Announce before Up: %v", err)
	}
	for range 2 { // the vote, an abort, the vote again
		if err := a.Up(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := w.drain(mac); len(got) != 0 {
			t.Errorf("%d frames while down: %x", len(got), got)
		}
		eventually(t, "a frame reaches the switch", func() bool {
			if err := try(); err != nil {
				t.Fatal(err)
			}
			return len(w.drain(mac)) > 0
		})
		if err := a.Down(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.drain(mac)
		if err := try(); !errors.Is(err, unix.EIO) {
			t.Errorf("frame after Down: %v", err)
		}
	}
}

// No host hears a guest that has addresses to give up. Its VMM, which may give up a NIC for good whose tap is down,
// does not notice.
func TestNothingLeavesWhileMute(t *testing.T) {
	f := newFabric(t, 1, 1500)
	a, links := f.attach(t, 0, func(l *Link) { l.Sink = "dhcp0" })
	g := newGuest(t, a, 0)
	w := listen(t, f.ns, "port0")
	mac, probe := links[0].NIC.MAC, rarp(g.mac)
	if err := a.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := sh(t, f.nodes[0], "tc", "filter", "show", "dev", "tap0", "ingress")
	for range 2 {
		if err := a.Mute(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.drain(mac)
		for range 20 {
			if err := g.send(probe); err != nil {
				t.Fatal(err)
			}
		}
		if got := w.drain(mac); len(got) != 0 {
			t.Errorf("%d frames while mute: %x", len(got), got)
		}
		if got := sh(t, f.nodes[0], "tc", "filter", "show", "dev", "tap0", "ingress"); strings.Count(got,
			"mirred") != strings.Count(before, "mirred")-1 {
			t.Errorf("filters while mute:\n%s\nbefore:\n%s", got, before)
		}
	}
	if err := a.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a frame reaches the switch", func() bool {
		if err := g.send(probe); err != nil {
			t.Fatal(err)
		}
		return len(w.drain(mac)) > 0
	})
}

// A zombie that still holds the tap is cut off by Detach.
func TestZombieIsFenced(t *testing.T) {
	f := newFabric(t, 1, 1500)
	a, links := f.attach(t, 0)
	g := newGuest(t, a, 0)
	if err := a.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := g.send(rarp(g.mac)); err != nil {
		t.Fatal(err)
	}
	if err := Detach(t.Context(), f.nodes[0], links); err != nil {
		t.Fatal(err)
	}
	if err := g.send(rarp(g.mac)); !errors.Is(err, unix.EBADFD) {
		t.Errorf("frame of a zombie: %v", err)
	}
	if err := a.Up(t.Context()); !errdefs.IsNotFound(err) {
		t.Errorf("Up of a deleted tap: %v", err)
	}
	if err := a.Down(t.Context()); err != nil {
		t.Errorf("Down of a deleted tap: %v", err)
	}
}

func learned(t *testing.T, f fabric, mac string) string {
	t.Helper()
	for line := range strings.Lines(sh(t, f.ns, "bridge", "fdb", "show", "br", "br0")) {
		if strings.HasPrefix(line, mac+" ") && !strings.Contains(line, "permanent") {
			return strings.Fields(line)[2]
		}
	}
	return ""
}

// A move. The switch follows the announcement, traffic follows the switch.
func TestAnnounceMovesTraffic(t *testing.T) {
	f := newFabric(t, 2, 1500)
	const mac = "02:aa:bb:cc:dd:01"
	source, from := f.attach(t, 0, func(l *Link) { l.NIC.MAC = mac })
	if err := source.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	g := newGuest(t, source, 0)
	g.serve(t)
	if err := echo(f.ns, "10.88.0.2", 64, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	if got := learned(t, f, mac); got != "port0" {
		t.Fatalf("the switch has the guest at %q", got)
	}
	destination, _ := f.attach(t, 1, func(l *Link) { l.NIC = from[0].NIC })
	newGuest(t, destination, 0).serve(t)
	if err := source.Down(t.Context()); err != nil { // the vote
		t.Fatal(err)
	}
	w := listen(t, f.ns, "port1")
	if err := destination.Up(t.Context()); err != nil { // Run
		t.Fatal(err)
	}
	if err := destination.Announce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := learned(t, f, mac); got != "port1" {
		t.Errorf("after Announce the switch has the guest at %q", got)
	}
	if err := echo(f.ns, "10.88.0.2", 64, 10*time.Second); err != nil {
		t.Error(err)
	}
	count := map[string]int{}
	for _, frame := range w.drain(mac) {
		switch binary.BigEndian.Uint16(frame[12:]) {
		case etherRARP:
			count["rarp"]++
		case etherARP:
			if bytes.Equal(frame[28:32], frame[38:42]) {
				count[fmt.Sprintf("arp op %d", frame[21])]++
			}
		case etherIPv6:
			if frame[54] == 136 {
				count["na"]++
			}
		}
	}
	// Two IPv4 addresses, one IPv6 address, four times; the echo's own NA may come on top.
	if count["rarp"] != 4 || count["arp op 1"] != 8 || count["arp op 2"] != 8 || count["na"] < 4 {
		t.Errorf("announcements on the wire: %v", count)
	}
}

func TestAnnounceStopsWithItsContext(t *testing.T) {
	f := newFabric(t, 1, 1500)
	a, _ := f.attach(t, 0)
	if err := a.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := a.Announce(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Announce: %v", err)
	}
}

// Linux takes the unsolicited advertisement: the switch's neighbour entry changes.
func TestAdvertisementIsBelieved(t *testing.T) {
	f := newFabric(t, 1, 1500)
	const mac = "02:aa:bb:cc:dd:02"
	a, _ := f.attach(t, 0, func(l *Link) { l.NIC.MAC = mac })
	if err := a.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, ip := range []string{"10.88.0.2", "fd88::2"} {
		sh(t, f.ns, "ip", "neigh", "replace", ip, "lladdr", "02:00:00:00:00:99", "dev", "br0", "nud", "stale")
	}
	// The kernel ignores gratuitous ARP for an entry younger than locktime.
	sh(t, f.ns, "sh", "-c", "echo 0 > /proc/sys/net/ipv4/neigh/br0/locktime")
	if err := a.Announce(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, ip := range []string{"10.88.0.2", "fd88::2"} {
		eventually(t, "neighbour entry of "+ip, func() bool {
			return strings.Contains(sh(t, f.ns, "ip", "neigh", "show", ip), mac)
		})
	}
}
