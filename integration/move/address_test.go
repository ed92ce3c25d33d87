//go:build integration

// Package move wakes VMs where something is different from where they slept.
package move

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
	"godwit.dev/godwit/integration/observer"
)

const (
	vm      = "traveller"
	beacons = "9999"
)

var bound = harness.Slow(2 * time.Minute)

// listen hears the beacons of VMs until the test ends.
func listen(t *testing.T, h *harness.Harness) *observer.Watcher {
	t.Helper()
	conn, err := h.ListenPacket(net.JoinHostPort(harness.Gateway, beacons))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return observer.Watch(conn)
}

// boot starts the VM on a node, by ctr with these flags, and waits until it is heard.
func boot(t *testing.T, n *harness.Node, watch *observer.Watcher, flags ...string) observer.Sighting {
	t.Helper()
	watch.Mark("boot")
	args := slices.Concat([]string{"run", "-d", "--cni", "--runtime", "io.containerd.godwit.v1"}, flags,
		[]string{images.Probe, vm, "/bin/probe", "-beacon", net.JoinHostPort(harness.Gateway, beacons)})
	n.Ctr(t, args...)
	return after(t, watch, "boot")
}

func after(t *testing.T, w *observer.Watcher, mark string) observer.Sighting {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	sign, err := w.After(ctx, mark)
	if err != nil {
		t.Fatalf("no sign of the VM after %q: %v", mark, err)
	}
	return sign
}

func ask(t *testing.T, h *harness.Harness, address string) images.ProbeState {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	state, err := observer.Ask(ctx, h.Dial, address)
	if err != nil {
		t.Fatalf("ask the VM at %s: %v", address, err)
	}
	return state
}

// told are the addresses that godwit ps names for the VM.
func told(t *testing.T, n *harness.Node) []string {
	t.Helper()
	var list struct {
		VMs []struct {
			VM        struct{ ID string }
			Addresses []string
		}
	}
	if err := json.Unmarshal([]byte(n.Godwit(t, "ps", "-o", "json")), &list); err != nil {
		t.Fatal(err)
	}
	for _, info := range list.VMs {
		if info.VM.ID == vm {
			return info.Addresses
		}
	}
	return nil
}

func sealKey(n *harness.Node) string { return filepath.Join(n.Dir, "seal.key") }

func giveKey(t *testing.T, n *harness.Node) {
	t.Helper()
	key := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("godwit!!"), 4))
	if err := os.WriteFile(sealKey(n), []byte(key), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A VM wakes where the network gives it another address: the guest has it before its
// workload goes on, tools show it, the old one is silent, and nothing else of
// the VM has changed. It has a user namespace. It sleeps sealed: a node without the key says so and leaves
// it asleep.
func TestWakeAtAnotherAddress(t *testing.T) {
	h := harness.New(t, harness.Options{
		Nodes: 2, Registry: harness.PlainHTTP, Godwitd: true, Images: true,
		Config: func(n *harness.Node) string {
			return fmt.Sprintf("[seal]\nkey_files = [%q]\nrequired = true\n", sealKey(n))
		},
	})
	a, b := h.Node(0), h.Node(1)
	giveKey(t, a)
	a.CheckClean(t)
	b.CheckClean(t)
	watch := listen(t, h)
	// b's plugin gives addresses of its own range, whatever it is asked for.
	if _, err := b.Run(t.Context(), "sed", "-i", `/"capabilities"/d`, "/etc/cni/net.d/10-godwit.conflist"); err != nil {
		t.Fatal(err)
	}
	booted := boot(t, a, watch, mapped(true)...)
	hasUsers(t, a, "booted")
	before := ask(t, h, booted.From)
	a.Godwit(t, "hibernate", vm)

	if out, err := b.RunGodwit(t.Context(), "wake", "--on", b.Name, vm); err == nil ||
		!strings.Contains(out+err.Error(), "seal.key_files") {
		t.Errorf("a wake without the key: %v\n%s", err, out)
	}
	giveKey(t, b)
	watch.Mark("wake")
	b.Godwit(t, "wake", "--on", b.Name, vm)
	// A datagram that was on its way when the VM was paused may come out after the wake.
	if first := after(t, watch, "wake"); first.From == booted.From {
		t.Logf("beacon %d is from the address that the VM had", first.Counter)
	}
	woken := watch.Latest()
	err := harness.Poll(t.Context(), bound, func(context.Context) error {
		if woken = watch.Latest(); woken.From == booted.From {
			return fmt.Errorf("beacon %d is from %s still", woken.Counter, woken.From)
		}
		return nil
	})
	if err != nil || !strings.HasPrefix(woken.From, "10.88.2.") {
		t.Fatalf("woke at %s, was at %s; want an address of node b: %v", woken.From, booted.From, err)
	}
	now := ask(t, h, woken.From)
	if now.Nonce != before.Nonce || now.PID != before.PID || now.StartTime != before.StartTime ||
		now.BootID != before.BootID || !now.FileOK || now.Counter <= before.Counter {
		t.Errorf("the VM is another one: %+v, was %+v", now, before)
	}
	if got := told(t, b); len(got) == 0 || !strings.HasPrefix(got[0], woken.From+"/") {
		t.Errorf("godwit ps says %v, want %s", got, woken.From)
	}
	has := b.Ctr(t, "task", "exec", "--exec-id", "addresses", vm, "ip", "-o", "addr")
	if !strings.Contains(has, " "+woken.From+"/") || strings.Contains(has, " "+booted.From+"/") {
		t.Errorf("the guest woke at %s, was at %s, and has\n%s", woken.From, booted.From, has)
	}
	hasUsers(t, b, "woken")
	if doubles, back := watch.Twice(); doubles+back > 0 {
		t.Errorf("seen twice: %d doubled, %d out of order", doubles, back)
	}
	b.Ctr(t, "task", "rm", "--force", vm)
	for _, n := range []*harness.Node{b, a} {
		n.Ctr(t, "container", "rm", vm)
	}
	b.Godwit(t, "rm", vm, "--force")
}
