//go:build integration

package move

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

// noted is what the journal of a VM says about its NICs, what its workload has yet to hear, and
// who its shim is.
type noted struct {
	Phase     string
	Unplugged bool
	Adopted   bool
	Shim      struct{ PID int }
	Untold    []struct{ Digest string }
	Process   struct {
		PID  int
		NICs []string
	}
}

func journal(n *harness.Node, id string) (j noted) {
	data, err := os.ReadFile(filepath.Join(n.Dir, "lib", "vms", "default", id, "node.json"))
	if err == nil {
		_ = json.Unmarshal(data, &j) // it is replaced whole
	}
	return j
}

// until polls what the journal is to say.
func until(t *testing.T, n *harness.Node, id, what string, ok func(noted) bool) noted {
	t.Helper()
	err := harness.Poll(t.Context(), bound, func(context.Context) error {
		if j := journal(n, id); !ok(j) {
			return fmt.Errorf("journal of %s: %+v", id, j)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	return journal(n, id)
}

// nics is what the guest itself says of its interfaces: names, MACs and places on the bus.
func nics(t *testing.T, n *harness.Node, id, exec string) string {
	t.Helper()
	return n.Ctr(t, "task", "exec", "--exec-id", exec, id, "sh", "-c",
		"for i in /sys/class/net/*; do ls -l $i; cat $i/address; done | grep -v '^total' | sed 's/.* -> //'; ip addr show "+
			"eth0 | grep 'inet '; ip route")
}

// A VM that is told to sleeps without its NIC, on a real VMM with a guest that has PCI
// hot-plug: the NIC is ejected before the pause and plugged in once after the wake, with
// the same name, MAC, place and address. A guest that does
// not let go keeps NIC and node, and a shim that dies on the way costs neither.
func TestRecycle(t *testing.T) {
	h := harness.New(t, harness.Options{Nodes: 2, Registry: harness.PlainHTTP, Godwitd: true, Images: true})
	a, b := h.Node(0), h.Node(1)
	a.CheckClean(t)
	b.CheckClean(t)
	watch := listen(t, h)
	run := func(id string) {
		a.Ctr(t, "run", "-d", "--cni", "--annotation", "godwit.dev/nic=recycle", "--runtime", "io.containerd.godwit.v1",
			images.Probe, id, "/bin/probe", "-beacon", net.JoinHostPort(harness.Gateway, beacons))
	}
	watch.Mark("boot")
	run(vm)
	booted := after(t, watch, "boot")
	before, seen := ask(t, h, booted.From), nics(t, a, vm, "look1")

	t.Run("sleep and wake", func(t *testing.T) {
		a.Godwit(t, "hibernate", vm)
		watch.Mark("wake")
		b.Godwit(t, "wake", "--on", b.Name, vm)
		woken := after(t, watch, "wake")
		now := ask(t, h, booted.From)
		if now.Nonce != before.Nonce || now.PID != before.PID || now.BootID != before.BootID || !now.FileOK ||
			now.Counter <= before.Counter || woken.From != booted.From {
			t.Errorf("the VM is another one, from %s: %+v, was %+v", woken.From, now, before)
		}
		if got := nics(t, b, vm, "look2"); got != seen {
			t.Errorf("the guest has\n%s\nit had\n%s", got, seen)
		}
		if j := journal(b, vm); j.Unplugged || !slices.Equal(j.Process.NICs, []string{"net0"}) {
			t.Errorf("journal %+v", j)
		}
		b.WantMetrics(t, map[string]float64{
			`godwit_wake_total{result="ok"}`: 1, `godwit_wake_address_seconds_count{result="ok"}`: 1,
			`godwit_wake_address_seconds_count{result="timeout"}`:       0,
			`godwit_start_seconds_count{failed="false",mode="restore"}`: 1,
			`godwit_start_seconds_count{failed="false",mode="boot"}`:    0,
		})
	})

	// What recycling promises holds in a live move as well, which is how a Windows guest moves.
	t.Run("live move", func(t *testing.T) {
		for _, to := range []*harness.Node{a, b} {
			if m := migrate(t, a, vm, "--to", to.Name, "--mode", "live"); m.Operation.Mode != "live" {
				t.Errorf("moved as %+v", m)
			}
			watch.Mark(to.Name)
			moved := after(t, watch, to.Name)
			now := ask(t, h, booted.From)
			if now.Nonce != before.Nonce || now.BootID != before.BootID || moved.From != booted.From {
				t.Errorf("on node %s the VM is another one, from %s: %+v", to.Name, moved.From, now)
			}
			until(t, to, vm, "the NIC is back", func(j noted) bool {
				return !j.Unplugged && slices.Equal(j.Process.NICs, []string{"net0"})
			})
			if got := nics(t, to, vm, "moved"); got != seen {
				t.Errorf("on node %s the guest has\n%s\nit had\n%s", to.Name, got, seen)
			}
		}
	})

	t.Run("shim dies after the eject", func(t *testing.T) {
		reached, open := h.Door.Hold(func(r *http.Request) bool {
			return r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/manifests/")
		})
		defer open()
		b.Godwit(t, "hibernate", "--detach", vm)
		<-reached // all of the VM is in the store, without a name
		j := until(t, b, vm, "the guest has let go", func(j noted) bool { return j.Phase == "SENDING" && j.Unplugged })
		if _, err := b.Run(t.Context(), "kill", "-KILL", fmt.Sprint(j.Shim.PID)); err != nil {
			t.Fatal(err)
		}
		open()
		until(t, b, vm, "the successor gives the NIC back", func(j noted) bool {
			return j.Phase == "OWN" && j.Adopted && !j.Unplugged && slices.Equal(j.Process.NICs, []string{"net0"})
		})
		if now := ask(t, h, booted.From); now.Nonce != before.Nonce {
			t.Errorf("the VM is another one: %+v", now)
		}
	})
	remove(t, b, vm)
	a.Ctr(t, "container", "rm", vm)

	t.Run("eject is not acknowledged", func(t *testing.T) {
		edit := `s/^node = /timeouts.nic = "3s"\n&/; s/^cmdline = "/&acpiphp.disable=1 /`
		if harness.Nested() { // the table is there already
			edit = `s/^\[timeouts\]/&\nnic = "3s"/; s/^cmdline = "/&acpiphp.disable=1 /`
		}
		if _, err := a.Run(t.Context(), "sed", "-i", edit, a.Config); err != nil {
			t.Fatal(err)
		}
		watch.Mark("deaf")
		run("deaf")
		at := after(t, watch, "deaf").From
		_, err := a.RunGodwit(t.Context(), "hibernate", "deaf")
		if err == nil || !strings.Contains(err.Error(), "timeouts.nic") {
			t.Errorf("hibernate = %v", err)
		}
		ask(t, h, at)
		if j := journal(a, "deaf"); j.Phase != "OWN" || !j.Unplugged || !slices.Equal(j.Process.NICs, []string{"net0"}) {
			t.Errorf("journal %+v", j)
		}
		a.Godwit(t, "hibernate", "--detach", "deaf")
		j := until(t, a, "deaf", "the guest is asked", func(j noted) bool { return j.Phase == "SENDING" })
		if _, err := a.Run(t.Context(), "kill", "-KILL", fmt.Sprint(j.Shim.PID)); err != nil {
			t.Fatal(err)
		}
		until(t, a, "deaf", "the successor runs the VM", func(j noted) bool { return j.Phase == "OWN" && j.Adopted })
		ask(t, h, at)
		remove(t, a, "deaf")
		// What ctr's own CNI took is lost with its task, with every runtime.
		if _, err := a.Run(t.Context(), "rm", "/var/lib/cni/networks/godwit/"+at,
			"/var/lib/cni/results/godwit-default-deaf-eth0"); err != nil {
			t.Error(err)
		}
	})
}

// remove ends a VM that containerd may not know any more.
func remove(t *testing.T, n *harness.Node, id string) {
	t.Helper()
	for _, args := range [][]string{{"task", "rm", "--force", id}, {"container", "rm", id}} {
		if _, err := n.RunCtr(t.Context(), args...); err != nil && !strings.Contains(err.Error(), "not found") {
			t.Error(err)
		}
	}
	err := harness.Poll(t.Context(), bound, func(ctx context.Context) error {
		_, err := n.RunGodwit(ctx, "rm", "--force", id)
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
