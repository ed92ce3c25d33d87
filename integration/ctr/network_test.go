//go:build integration

package ctr

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

const (
	netBulk   = 16 << 20
	guestPort = "7000"
	hostPort  = "7001"
)

// A VM on CNI's bridge, with an MTU that is not ethernet's.
func TestNetwork(t *testing.T) {
	h := harness.New(t, harness.Options{Images: true})
	n := h.Node(0)
	changeCNI(t, n, `"isGateway": false,`, `"isGateway": false, "mtu": 1400,`)
	n.CheckClean(t)
	c := start(t, n, nil, append(runArgs("--cni"), images.Busybox, "net", "sh", "-c",
		"trap 'exit 0' TERM; echo up; sleep 100000 & wait")...)
	c.stdout.says(t, "up\n")
	address := guestAddress(t, n, "net")
	if !strings.HasPrefix(address, "10.88.1.") {
		t.Errorf("the guest has address %s, want one of the node's range", address)
	}
	if got := ctr(t, n, nil, execArgs("net", "mtu", "cat /sys/class/net/eth0/mtu; ip route")...); !strings.HasPrefix(
		got.out, "1400\n") || !strings.Contains(got.out, "default via "+harness.Gateway) {
		t.Errorf("MTU and routes %q %q", got.out, got.errs)
	}
	ctr(t, n, nil, execArgs("net", "ping", "ping -c1 -W10 "+harness.Gateway+" >/dev/null")...).want(t, result{})
	if _, err := n.Run(t.Context(), "busybox", "ping", "-c1", "-W10", address); err != nil {
		t.Error(err)
	}
	t.Run("to the guest", func(t *testing.T) { testToGuest(t, h, n, address) })
	t.Run("from the guest", func(t *testing.T) { testFromGuest(t, h, n) })
	n.Ctr(t, "task", "kill", "-s", "SIGTERM", "net")
	c.wait(t).want(t, result{out: "up\n"})
	t.Run("named namespace", func(t *testing.T) { testNamespace(t, n) })
}

func changeCNI(t *testing.T, n *harness.Node, from, to string) {
	t.Helper()
	path := fmt.Sprintf("/proc/%d/root/etc/cni/net.d/10-godwit.conflist", n.PID())
	data, err := os.ReadFile(path)
	if err != nil || !bytes.Contains(data, []byte(from)) {
		t.Fatalf("CNI configuration %s: %v", data, err)
	}
	if err := os.WriteFile(path, bytes.Replace(data, []byte(from), []byte(to), 1), 0o600); err != nil {
		t.Fatal(err)
	}
}

// guestAddress is what the guest itself says.
func guestAddress(t *testing.T, n *harness.Node, vm string) string {
	t.Helper()
	out := n.Ctr(t, execArgs(vm, "address", "ip -4 -o addr show eth0")...)
	for _, f := range strings.Fields(out) {
		if a, _, ok := strings.Cut(f, "/"); ok {
			return a
		}
	}
	t.Fatalf("no address: %s", out)
	return ""
}

func testToGuest(t *testing.T, h *harness.Harness, n *harness.Node, address string) {
	listen := start(t, n, nil, execArgs("net", "server", "nc -l -p "+guestPort+" | sha256sum")...)
	var conn net.Conn
	err := harness.Poll(t.Context(), stepTimeout, func(ctx context.Context) (err error) {
		conn, err = h.Dial(ctx, "tcp", net.JoinHostPort(address, guestPort))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	data := bytes.Repeat([]byte("to the guest on the wire.......\n"), netBulk/32)
	_, err = conn.Write(data)
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	listen.wait(t).want(t, result{out: fmt.Sprintf("%x  -\n", sha256.Sum256(data))})
}

func testFromGuest(t *testing.T, h *harness.Harness, n *harness.Node) {
	l, err := h.Listen(net.JoinHostPort(harness.Gateway, hostPort))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	type got struct {
		sum string
		err error
	}
	answer := make(chan got, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			answer <- got{err: err}
			return
		}
		defer conn.Close()
		digest := sha256.New()
		_, err = io.Copy(digest, conn)
		answer <- got{fmt.Sprintf("%x", digest.Sum(nil)), err}
	}()
	text := fmt.Sprintf("yes 'from the guest' | head -c %d >/data; sha256sum </data; nc %s %s </data", netBulk,
		harness.Gateway, hostPort)
	said := ctr(t, n, nil, execArgs("net", "client", text)...)
	if said.code != 0 {
		t.Fatalf("client in the guest: %+v", said)
	}
	if a := <-answer; a.err != nil || a.sum != strings.Fields(said.out)[0] {
		t.Errorf("%s arrived (%v), the guest sent %s", a.sum, a.err, said.out)
	}
}

// A namespace that somebody else made is the VM's while it runs, and as it was after it.
func testNamespace(t *testing.T, n *harness.Node) {
	const address = "10.88.0.77"
	for _, args := range []string{
		"netns add pod", "link add pod0 type veth peer name eth0 netns pod", "link set pod0 master gw0 up",
		"-n pod link set lo up", "-n pod addr add " + address + "/16 dev eth0", "-n pod link set eth0 up",
		"-n pod route add default via " + harness.Gateway,
	} {
		if _, err := n.Run(t.Context(), "ip", strings.Fields(args)...); err != nil {
			t.Fatal(err)
		}
	}
	defer func() {
		if _, err := n.Run(context.WithoutCancel(t.Context()), "ip", "netns", "del", "pod"); err != nil {
			t.Error(err)
		}
	}()
	before := settled(t, n, func(state string) bool {
		return strings.Contains(state, "inet6 fe80") && !strings.Contains(state, "NO-CARRIER")
	})
	c := start(t, n, nil, script("pod", "trap 'exit 0' TERM; echo up; sleep 100000 & wait", "--with-ns",
		"network:/run/netns/pod")...)
	c.stdout.says(t, "up\n")
	if got := guestAddress(t, n, "pod"); got != address {
		t.Errorf("the guest has %s, want %s", got, address)
	}
	if _, err := n.Run(t.Context(), "busybox", "ping", "-c1", "-W10", address); err != nil {
		t.Error(err)
	}
	if namespaceState(t, n) == before {
		t.Error("the namespace shows no sign of the VM")
	}
	n.Ctr(t, "task", "kill", "-s", "SIGTERM", "pod")
	c.wait(t).want(t, result{out: "up\n"})
	settled(t, n, func(state string) bool { return state == before })
}

// settled waits until the namespace is as wanted; the kernel checks an IPv6 address for
// a second before it is no longer tentative.
func settled(t *testing.T, n *harness.Node, ok func(string) bool) (state string) {
	t.Helper()
	err := harness.Poll(t.Context(), harness.Slow(20*time.Second), func(context.Context) error {
		state = namespaceState(t, n)
		if strings.Contains(state, "tentative") || !ok(state) {
			return fmt.Errorf("the namespace is\n%s", state)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return state
}

// namespaceState is all that a VM changes in its namespace.
func namespaceState(t *testing.T, n *harness.Node) string {
	t.Helper()
	var all strings.Builder
	for _, args := range []string{"ip -n pod addr", "ip -n pod route show table all", "tc -n pod qdisc"} {
		f := strings.Fields(args)
		out, err := n.Run(t.Context(), f[0], f[1:]...)
		if err != nil {
			t.Fatal(err)
		}
		all.WriteString(out)
	}
	return all.String()
}
