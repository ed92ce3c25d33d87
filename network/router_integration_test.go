//go:build integration

package network

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/network/dhcp"
)

// foreignRouter advertises itself to everybody on the fabric.
var foreignRouter = netip.MustParseAddr("fe80::bad")

// rogue sends advertisements of a router that was not asked, as they are and after extension headers, and answers how
// often it has.
func rogue(t *testing.T, ns string) *atomic.Int64 {
	t.Helper()
	server, err := dhcp.New(dhcp.Config{NIC: spec.NIC{
		MAC: "02:00:00:00:00:0b", MTU: 1280, Addresses: []netip.Prefix{netip.MustParsePrefix("fd66::1/64")},
		Routes: []spec.Route{{IPv6: true, Gateway: foreignRouter}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	plain := server.Advertisements()[0]
	frames := [][]byte{plain}
	for _, next := range []byte{0, 60} { // hop-by-hop, destination options: padding alone
		f := append([]byte{}, plain[:54]...)
		binary.BigEndian.PutUint16(f[18:], uint16(len(plain)-54+8))
		f[20] = next
		f = append(f, 58, 0, 1, 4, 0, 0, 0, 0)
		frames = append(frames, append(f, plain[54:]...))
	}
	fd, index := -1, 0
	err = Do(ns, func() error {
		port, err := net.InterfaceByName("port0")
		if err == nil {
			index = port.Index
			fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var sent atomic.Int64
	stop, done := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(stop); <-done; unix.Close(fd) })
	go func() {
		defer close(done)
		for {
			for _, f := range frames {
				if unix.Sendto(fd, f, 0, &unix.SockaddrLinklayer{Ifindex: index, Halen: 6, Protocol: 0xdd86}) == nil {
					sent.Add(1)
				}
			}
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	eventually(t, "the foreign router speaks", func() bool { return sent.Load() > 0 })
	return &sent
}

// lease6 runs a real client of DHCPv6, and answers what it was told.
func (c *client) lease6(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	told, hook := filepath.Join(dir, "told"), filepath.Join(dir, "hook")
	text := "#!/bin/sh\n[ \"$reason\" = BOUND6 ] || exit 0\nip addr add $new_ip6_address/128 dev $interface nodad\n" +
		"echo $new_ip6_address $new_dhcp6_name_servers $new_dhcp6_domain_search >" + told + "\n"
	if err := os.WriteFile(hook, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "conf"), []byte("request dhcp6.name-servers, dhcp6.domain-search;\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	pid := filepath.Join(dir, "pid")
	sh(t, c.ns, "timeout", "30", "dhclient", "-6", "-1", "-cf", filepath.Join(dir, "conf"), "-lf",
		filepath.Join(dir, "leases"), "-pf", pid, "-sf", hook, "eth0")
	t.Cleanup(func() { sh(t, c.ns, "sh", "-c", "kill $(cat "+pid+")") })
	data, err := os.ReadFile(told)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

// A guest's kernel takes its routes, and a real client its address, from godwit. Through the gateway's stand-in it
// reaches hosts on the gateway's other side. No other router is believed.
func TestServeIPv6(t *testing.T) {
	f := newFabric(t, 1, 1400)
	script(t, f.ns, "ip link set lo up\nip addr add fd99::1/128 dev lo")
	var known []Link
	a, links := f.attach(t, 0, withSink, func(l *Link) {
		var err error
		if known, err = FindGateways(t.Context(), f.nodes[0], []Link{*l}); err != nil {
			t.Fatal(err)
		}
		*l = known[0]
	})
	t.Cleanup(func() { _ = a.Detach(t.Context()) })
	gateway := netip.MustParseAddr("fd88::1")
	if mac := links[0].Neighbors[gateway]; !strings.Contains(sh(t, f.ns, "ip", "link", "show", "br0"), mac) || mac == "" {
		t.Fatalf("the gateway's MAC was taken to be %q", mac)
	}
	sent := rogue(t, f.ns)
	leases := serve(t, a, links[0])
	if err := a.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	guest := newClient(t, a, links[0].NIC.MAC)
	eventually(t, "the guest has its default route", func() bool {
		return strings.Contains(sh(t, guest.ns, "ip", "-6", "route"), "default via fe80::67:77ff:fe64:6863 ")
	})
	settled(t, guest.ns)
	if got, want := guest.lease6(t), "fd88::2 fd88::53 example.org."; got != want {
		t.Errorf("the client was told %q, want %q", got, want)
	}
	if lease := <-leases; lease.Address != netip.MustParsePrefix("fd88::2/64") {
		t.Errorf("lease %+v", lease)
	}
	sh(t, guest.ns, "busybox", "ping6", "-c", "1", "-W", "5", "fd88::1") // on the link
	sh(t, guest.ns, "busybox", "ping6", "-c", "1", "-W", "5", "fd99::1") // on the gateway's other side
	if mtu := strings.TrimSpace(sh(t, guest.ns, "cat", "/proc/sys/net/ipv6/conf/eth0/mtu")); mtu != "1400" {
		t.Errorf("the guest's MTU is %s", mtu)
	}
	if addr := sh(t, guest.ns, "ip", "-6", "addr", "show", "dev", "eth0", "scope", "global"); strings.Count(addr,
		"inet6") != 1 {
		t.Errorf("the guest has made addresses of its own:\n%s", addr)
	}
	before := sent.Load()
	eventually(t, "the foreign router goes on", func() bool { return sent.Load() > before+20 })
	if n := guest.foreign.Load(); n != 0 {
		t.Errorf("%d of the %d advertisements of another router reached the guest", n, sent.Load())
	}
}
