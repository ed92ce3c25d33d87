//go:build integration

package network

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The oracle of these tests is iproute2, never this package.
func sh(t *testing.T, ns string, args ...string) string {
	t.Helper()
	out, err := exec.Command("nsenter", append([]string{"--net=" + ns, "--"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s in %s: %v: %s", strings.Join(args, " "), ns, err, out)
	}
	return string(out)
}

func script(t *testing.T, ns, lines string) {
	t.Helper()
	for line := range strings.Lines(lines) {
		if f := strings.Fields(line); len(f) > 0 {
			sh(t, ns, f...)
		}
	}
}

func newNS(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := newNamespace(path, func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := DeleteNamespace(path); err != nil {
			t.Error(err)
		}
	})
	return path
}

// settled waits until no address is tentative, and each has its route: only then is a dump comparable. The kernel makes
// the route a moment after an address is no longer tentative.
func settled(t *testing.T, ns string) {
	t.Helper()
	address := regexp.MustCompile(`inet6 ([0-9a-f:]+)/`)
	eventually(t, "duplicate address detection ends", func() bool {
		all := sh(t, ns, "ip", "-6", "addr", "show", "up")
		routes := sh(t, ns, "ip", "-6", "route", "show", "table", "local") + "\n"
		for _, m := range address.FindAllStringSubmatch(all, -1) {
			if !strings.Contains(routes, "local "+m[1]+" dev ") {
				return false
			}
		}
		return !strings.Contains(all, "tentative")
	})
}

// sure ends duplicate address detection in a namespace, which takes a second whenever an
// interface comes up: for tests that bring one up a hundred times.
func sure(t *testing.T, ns string) {
	t.Helper()
	sh(t, ns, "sh", "-c", "for f in /proc/sys/net/ipv6/conf/*/accept_dad; do echo 0 >$f; done")
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 20 s", what)
		}
	}
}

var volatile = regexp.MustCompile(
	` tentative| (valid|preferred)_lft \d+sec| expires \d+sec| pref medium| proto kernel_ll`)

// state is everything of a namespace that an attachment touches.
func state(t *testing.T, ns string) []string {
	t.Helper()
	settled(t, ns)
	all := sh(t, ns, "sh", "-c", `
		ip -d -o link; ip -d -o addr; tc qdisc
		ip -4 route show table all; ip -6 route show table all
		for i in $(ls /proc/sys/net/ipv6/conf); do
			test $i = all -o $i = default || tc filter show dev $i ingress
			cd /proc/sys/net/ipv6/conf/$i; grep . addr_gen_mode accept_ra autoconf | sed "s/^/$i /"
		done`)
	lines := strings.Split(strings.TrimSpace(volatile.ReplaceAllString(all, "")), "\n")
	slices.Sort(lines)
	return lines
}

func interfaces(t *testing.T, ns string) (names []string) {
	t.Helper()
	for line := range strings.Lines(sh(t, ns, "ip", "-o", "link")) {
		name, _, _ := strings.Cut(strings.Fields(line)[1], "@")
		names = append(names, strings.TrimSuffix(name, ":"))
	}
	return names
}

// fabric is a switch with one port for each node.
type fabric struct {
	ns    string
	nodes []string
}

// newFabric gives node i the interface eth0 with .2+i/24 and :2+i/64, the switch .1.
func newFabric(t *testing.T, nodes, mtu int) fabric {
	t.Helper()
	f := fabric{ns: newNS(t, "fabric")}
	script(t, f.ns, fmt.Sprintf(`
		ip link add br0 type bridge
		ip link set br0 mtu %d up
		ip addr add 10.88.0.1/24 dev br0
		ip addr add fd88::1/64 dev br0 nodad`, mtu))
	for i := range nodes {
		node := newNS(t, fmt.Sprintf("node%d", i))
		script(t, f.ns, fmt.Sprintf(`
			ip link add port%d mtu %d type veth peer name eth0 mtu %d netns %s
			ip link set port%d master br0 up`, i, mtu, mtu, node, i))
		script(t, node, fmt.Sprintf(`
			ip link set eth0 up
			ip addr add 10.88.0.%d/24 brd + dev eth0
			ip addr add 10.88.0.1%d/24 dev eth0 label eth0:x
			ip addr add 192.168.7.%d/32 dev eth0 scope link
			ip addr add 10.5.0.1 peer 10.5.0.2/32 dev eth0 scope link
			ip addr add fd88::%d/64 dev eth0 nodad
			ip route add default via 10.88.0.1 dev eth0 src 10.88.0.%d
			ip route add 172.16.0.0/12 via 10.88.0.1 dev eth0 metric 77 mtu 1300
			ip route add 10.99.0.1 dev eth0 scope link table 300
			ip -6 route add default via fd88::1 dev eth0`, i+2, i+2, i+2, i+2, i+2))
		settled(t, node)
		f.nodes = append(f.nodes, node)
	}
	settled(t, f.ns)
	return f
}

func (f fabric) attach(t *testing.T, node int, change ...func(*Link)) (*Attachment, []Link) {
	t.Helper()
	links := mustRead(t, f.nodes[node])
	for _, c := range change {
		c(&links[0])
	}
	a, err := Attach(t.Context(), f.nodes[node], owner, links)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	return a, links
}

var owner = Owner{Node: "0a1b2c3d4e5f", VM: "test/vm1", Generation: 4, Attempt: 2}

func mustRead(t *testing.T, ns string) []Link {
	t.Helper()
	links, err := Read(t.Context(), ns)
	if err != nil {
		t.Fatal(err)
	}
	return links
}

// guest answers ARP, neighbour solicitations, and every UDP and ICMP echo by sending
// it back, on a tap.
type guest struct {
	tap *os.File
	mac net.HardwareAddr
	ips []netip.Addr
}

const vnetHeader = 10

func newGuest(t *testing.T, a *Attachment, i int) *guest {
	t.Helper()
	fd, err := unix.FcntlInt(a.Taps()[i].Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		t.Fatal(err)
	}
	g := &guest{tap: os.NewFile(uintptr(fd), "guest")}
	nic := a.Links()[i].NIC
	g.mac, _ = net.ParseMAC(nic.MAC)
	for _, p := range nic.Addresses {
		g.ips = append(g.ips, p.Addr())
	}
	t.Cleanup(func() { g.tap.Close() })
	return g
}

// serve runs the guest until the test ends or the tap is deleted.
func (g *guest) serve(t *testing.T) {
	done := make(chan struct{})
	t.Cleanup(func() { g.tap.SetReadDeadline(time.Now()); <-done })
	go func() {
		defer close(done)
		buf := make([]byte, 1<<16)
		for {
			n, err := g.tap.Read(buf)
			if err != nil {
				return
			}
			if out := g.answer(slices.Clone(buf[vnetHeader:n])); out != nil {
				g.send(out)
			}
		}
	}()
}

func (g *guest) send(frame []byte) error {
	_, err := g.tap.Write(append(make([]byte, vnetHeader), frame...))
	return err
}

func (g *guest) answer(f []byte) []byte {
	from := net.HardwareAddr(slices.Clone(f[6:12]))
	own := func(b []byte) (netip.Addr, bool) {
		ip, _ := netip.AddrFromSlice(b)
		return ip, slices.Contains(g.ips, ip)
	}
	switch kind := binary.BigEndian.Uint16(f[12:]); {
	case kind == etherARP && f[21] == arpRequest:
		ip, ok := own(f[38:42])
		if !ok {
			return nil
		}
		asker, _ := netip.AddrFromSlice(f[28:32])
		return ethernet(from, g.mac, etherARP, arp(arpReply, g.mac, ip, from, asker))
	case kind == etherIPv6 && f[20] == 58 && f[54] == 135:
		if ip, ok := own(f[62:78]); ok {
			return neighborAdvertisement(g.mac, ip) // to all nodes: good enough for the asker
		}
	case kind == 0x0800 && f[23] == 17 && bytes.Equal(f[:6], g.mac):
		return swap(f, from, g.mac, 26, 4)
	case kind == etherIPv6 && f[20] == 17 && bytes.Equal(f[:6], g.mac):
		return swap(f, from, g.mac, 22, 16)
	}
	return nil
}

// swap turns a UDP frame round, which leaves its checksums right.
func swap(f []byte, to, from net.HardwareAddr, at, size int) []byte {
	copy(f, append(slices.Clone(to), from...))
	src := slices.Clone(f[at : at+size])
	copy(f[at:], f[at+size:at+2*size])
	copy(f[at+size:], src)
	port := slices.Clone(f[at+2*size : at+2*size+2])
	copy(f[at+2*size:], f[at+2*size+2:at+2*size+4])
	copy(f[at+2*size+2:], port)
	return f
}

// echo sends datagrams of that size from ns until one comes back, or for that long.
func echo(ns, to string, size int, wait time.Duration) error {
	return Do(ns, func() error {
		c, err := net.Dial("udp", net.JoinHostPort(to, "7"))
		if err != nil {
			return err
		}
		defer c.Close()
		want, got := bytes.Repeat([]byte{0xa5}, size), make([]byte, size+1)
		for deadline := time.Now().Add(wait); ; {
			if _, err := c.Write(want); err != nil {
				return err
			}
			c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
			n, err := c.Read(got)
			if err == nil && bytes.Equal(got[:n], want) {
				return nil
			} else if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
				return err
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("no echo of %d bytes from %s: %w", size, to, os.ErrDeadlineExceeded)
			}
		}
	})
}
