//go:build integration

package move

import (
	"slices"
	"strings"
	"testing"

	"godwit.dev/godwit/integration/harness"
)

// TestJourney is the shortest way past all that depends on the VMM, for CASES=smoke of the KVM ring: a VM starts,
// sleeps without its NIC, wakes on the other node while its RAM comes, gets its NIC, and moves back live.
func TestJourney(t *testing.T) {
	h := harness.New(t, harness.Options{Nodes: 2, Registry: harness.PlainHTTP, Godwitd: true, Images: true,
		Config: func(*harness.Node) string { return "[worker]\nrestore = \"lazy\"\n" }})
	a, b := h.Node(0), h.Node(1)
	a.CheckClean(t)
	b.CheckClean(t)
	watch := listen(t, h)
	address := boot(t, a, watch, "--annotation", "godwit.dev/nic=recycle").From
	a.Ctr(t, "task", "exec", "--exec-id", "noise", vm, "/bin/busybox", "dd", "if=/dev/urandom", "of=/dev/shm/noise",
		"bs=1M", "count=8")
	want, before := sum(t, a, "before"), ask(t, h, address)
	seen := nics(t, a, vm, "look1")
	same := func(n *harness.Node) {
		t.Helper()
		if got := sum(t, n, "sum-"+n.Name); got != want {
			t.Errorf("node %s: the guest's memory is another: %s, was %s", n.Name, got, want)
		}
		now := ask(t, h, address)
		if now.Nonce != before.Nonce || now.PID != before.PID || now.BootID != before.BootID || !now.FileOK ||
			now.Counter <= before.Counter {
			t.Errorf("node %s: the VM is another one: %+v, was %+v", n.Name, now, before)
		}
		until(t, n, vm, "the NIC is back", func(j noted) bool {
			return !j.Unplugged && slices.Equal(j.Process.NICs, []string{"net0"})
		})
		if got := nics(t, n, vm, "look-"+n.Name); got != seen {
			t.Errorf("node %s: the guest has\n%s\nit had\n%s", n.Name, got, seen)
		}
	}

	a.Godwit(t, "hibernate", vm)
	held, open := holdFillPacks(h, b)
	defer open()
	b.Godwit(t, "wake", "--on", b.Name, vm)
	await(t, held)
	if now := restoring(t, b); !strings.HasPrefix(now, "lazy, ") {
		t.Errorf("restore is %q, and nothing was let through", now)
	}
	open()
	same(b)
	watch.Mark("back")
	if m := migrate(t, a, vm, "--to", a.Name, "--mode", "live"); m.Operation.Phase != "succeeded" ||
		m.Operation.Mode != "live" {
		t.Errorf("moved as %+v", m)
	}
	after(t, watch, "back")
	same(a)
	a.Ctr(t, "task", "rm", "--force", vm)
	for _, n := range []*harness.Node{a, b} {
		_, _ = n.RunCtr(t.Context(), "container", "rm", vm)
	}
	a.Godwit(t, "rm", vm, "--force")
}
