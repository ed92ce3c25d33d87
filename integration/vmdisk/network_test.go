//go:build integration

package vmdisk

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

const guestMTU = "1400"

// network is a VM disk with a NIC of CNI's. Its own DHCP client is told what the plugin gave. It
// keeps its lease on another node. Where the network gives it another address it asks anew.
func (s *site) network(t *testing.T) {
	const vm = "net"
	for _, n := range s.h.Nodes() {
		changeCNI(t, n, `"isGateway": false,`, `"isGateway": false, "mtu": `+guestMTU+`,`)
	}
	c := run(t, s.a, append(byKernel("vmlinuz"), "--cni", "--annotation", "godwit.dev/memory=256MiB",
		"--mount", "type=bind,src=/etc/resolv.conf,dst=/etc/resolv.conf,options=rbind:ro", images.KernelDisk, vm)...)
	first := awaitTick(t, c.out.String, func(s state) bool {
		return s["leases"] != "" && s["lease"] != "" && strings.HasSuffix(s["net"], ","+harness.Gateway)
	})
	address := s.leased(t, s.a, vm, first)
	if !strings.HasPrefix(address, "10.88.1.") {
		t.Errorf("the guest has %s, want one of the node's range", address)
	}
	c.types("ping -c1 -W10 " + harness.Gateway + " >/dev/null && echo pong")
	c.says("pong\n")
	// From now on the guest renews its lease, wherever it is.
	c.types("(while sleep 2; do killall -USR1 udhcpc; done) >/dev/null 2>&1 &")

	t.Run("live move", func(t *testing.T) { s.movesLive(t, vm, address, first) })
	t.Run("same address", func(t *testing.T) {
		s.a.Godwit(t, "hibernate", vm)
		all := states(s.log(s.a, vm)())
		log := s.later(s.b, vm)
		s.b.Godwit(t, "wake", "--on", s.b.Name, vm)
		renewed := awaitRenewed(t, log, first, number(t, all[len(all)-1]["leases"])+2)
		renewed.want(t, state{"nonce": first["nonce"]})
		if got := s.leased(t, s.b, vm, renewed); got != address {
			t.Errorf("woke at %s, was at %s", got, address)
		}
	})
	t.Run("another address", func(t *testing.T) {
		s.b.Godwit(t, "hibernate", vm)
		changeCNI(t, s.a, `"capabilities": {"ips": true, "mac": true},`, "")
		changeCNI(t, s.a, `"rangeStart": "10.88.1.10"`, `"rangeStart": "10.88.1.100"`)
		s.a.Godwit(t, "wake", "--on", s.a.Name, vm)
		log := s.log(s.a, vm)
		moved := awaitTick(t, log, func(s state) bool {
			return s["lease"] != "" && s["lease"] != first["lease"] && strings.Contains(s["net"], "10.88.1.1") &&
				strings.HasSuffix(s["net"], harness.Gateway)
		})
		moved.want(t, state{"nonce": first["nonce"]})
		if got := s.leased(t, s.a, vm, moved); got == address {
			t.Errorf("woke at %s again", got)
		}
		if was, is := macOf(first), macOf(moved); was != is {
			t.Errorf("the NIC's MAC is %s, was %s", is, was)
		}
		s.a.WantMetrics(t, map[string]float64{`godwit_wake_address_seconds_count{result="ok"}`: 1,
			`godwit_wake_address_seconds_count{result="timeout"}`: 0})
	})
	s.powerOff(t, s.a, vm, s.log(s.a, vm))
	s.remove(t, vm, s.a, s.b)
}

// movesLive moves it there and back while it runs. The guest is neither asked nor told anything.
// It keeps its NIC and its lease, and renews that at the other node.
func (s *site) movesLive(t *testing.T, vm, address string, first state) {
	for _, to := range []*harness.Node{s.b, s.a} {
		log := s.later(to, vm)
		s.a.Godwit(t, "migrate", "--to", to.Name, "--mode", "live", vm)
		moved := awaitTick(t, log, func(state) bool { return true })
		moved.want(t, state{"nonce": first["nonce"], "disk": first["disk"], "boots": first["boots"]})
		times := number(t, moved["leases"]) + 1
		renewed := awaitRenewed(t, log, first, times)
		if got := s.leased(t, to, vm, renewed); got != address {
			t.Errorf("on node %s it has %s, it had %s", to.Name, got, address)
		}
	}
}

// leased compares what the guest has, and was told, with what the node's CNI plugin and godwit
// say. It answers the address, at which the guest is reached.
func (s *site) leased(t *testing.T, n *harness.Node, vm string, of state) string {
	t.Helper()
	told := strings.Split(of["lease"], ",")
	address, _, _ := strings.Cut(told[0], "/")
	want := fmt.Sprintf("%s/16,%s,%s,%s,", address, harness.Gateway, guestMTU, harness.Gateway)
	if !strings.HasPrefix(of["lease"], want) {
		t.Errorf("the guest was told %q, want %q", of["lease"], want)
	}
	if want := fmt.Sprintf(",%s,%s/16,%s", guestMTU, address, harness.Gateway); !strings.HasSuffix(of["net"], want) {
		t.Errorf("the guest has %q, want %q", of["net"], want)
	}
	if owner, err := n.Run(t.Context(), "cat", "/var/lib/cni/networks/godwit/"+address); err != nil ||
		!strings.Contains(owner, "default-"+vm) {
		t.Errorf("CNI gave %s to %q, %v", address, owner, err)
	}
	if out := n.Godwit(t, "ps", "-o", "wide"); !strings.Contains(out, address) {
		t.Errorf("godwit ps says %s, want %s", out, address)
	}
	if out, err := n.Run(t.Context(), "busybox", "ping", "-c1", "-W10", address); err != nil {
		t.Errorf("the guest is not reached: %s, %v", out, err)
	}
	s.event(t, n, vm, address)
	return address
}

// event wants the lease in the shim's log, on whichever node the guest got it.
func (s *site) event(t *testing.T, n *harness.Node, vm, address string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(s.h.Dir, "log", n.Name+"-*"))
	if err != nil {
		t.Fatal(err)
	}
	line := fmt.Sprintf("msg=lease vm=default/%s nic=net0 address=%s/16", vm, address)
	for _, f := range files {
		if data, err := os.ReadFile(f); err == nil && strings.Contains(string(data), line) {
			return
		}
	}
	t.Errorf("no log of node %s says %q", n.Name, line)
}

// awaitRenewed waits until the guest has had its lease confirmed that often, and has the
// lease and the network that it had first: its client takes routes away and gives them
// again, each time.
func awaitRenewed(t *testing.T, text func() string, first state, times int) state {
	t.Helper()
	return awaitTick(t, text, func(s state) bool {
		n, err := strconv.Atoi(s["leases"])
		return err == nil && n >= times && s["net"] == first["net"] && s["lease"] == first["lease"]
	})
}

func macOf(s state) string {
	f := strings.Split(s["net"]+",,", ",")
	return f[1]
}

// log is what a VM that woke on a node writes.
func (s *site) log(n *harness.Node, vm string) func() string {
	return func() string {
		data, _ := os.ReadFile(filepath.Join(s.h.Dir, "log", n.Name+"-default-"+vm+".log"))
		return strings.ReplaceAll(string(data), "\r", "")
	}
}

// later is what log will have beyond what it has: the VM may have been there before.
func (s *site) later(n *harness.Node, vm string) func() string {
	log := s.log(n, vm)
	seen := len(log())
	return func() string {
		text := log()
		return text[min(seen, len(text)):]
	}
}

func changeCNI(t *testing.T, n *harness.Node, from, to string) {
	t.Helper()
	const path = "/etc/cni/net.d/10-godwit.conflist"
	data, err := n.Run(context.WithoutCancel(t.Context()), "cat", path)
	if err != nil || !strings.Contains(data, from) {
		t.Fatalf("CNI configuration %s: %v", data, err)
	}
	file := fmt.Sprintf("/proc/%d/root%s", n.PID(), path)
	if err := os.WriteFile(file, []byte(strings.Replace(data, from, to, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
}
