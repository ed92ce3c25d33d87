//go:build integration

package network

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
)

func TestAttachAndDetach(t *testing.T) {
	f := newFabric(t, 1, 1500)
	ns := f.nodes[0]
	before := state(t, ns)
	links := mustRead(t, ns)
	if len(links) != 1 || links[0].Interface != "eth0" || links[0].Tap != "tap0" || links[0].NIC.ID != "net0" {
		t.Fatalf("links: %+v", links)
	}
	if got := fmt.Sprint(links[0].NIC.Addresses); got != "[10.88.0.2/24 10.88.0.12/24 fd88::2/64]" {
		t.Errorf("guest's addresses: %s", got)
	}
	if diff := cmp.Diff(before, state(t, ns)); diff != "" {
		t.Fatalf("Read changed the namespace:\n%s", diff)
	}

	a, err := Attach(t.Context(), ns, owner, links)
	if err != nil {
		t.Fatal(err)
	}
	if got := sh(t, ns, "ip", "-o", "addr", "show", "dev", "eth0"); got != "" {
		t.Errorf("addresses left for the host: %s", got)
	}
	tap := sh(t, ns, "ip", "-d", "link", "show", "tap0")
	for _, want := range []string{"state DOWN", "alias godwit/test/vm1/n0a1b2c3d4e5f/g4/a2", "mtu 1500", links[0].NIC.MAC,
		"addrgenmode none", "vnet_hdr on", "persist on"} {
		if !strings.Contains(tap, want) {
			t.Errorf("tap lacks %q: %s", want, tap)
		}
	}
	if len(a.Taps()) != 1 {
		t.Errorf("taps: %v", a.Taps())
	}
	if err := a.Up(t.Context()); err != nil {
		t.Error(err)
	}
	if err := a.Detach(t.Context()); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(before, state(t, ns)); diff != "" {
		t.Errorf("namespace after Detach:\n%s", diff)
	}
	for range 2 { // Repeating it does nothing
		if err := Detach(t.Context(), ns, links); err != nil {
			t.Error(err)
		}
	}
	if diff := cmp.Diff(before, state(t, ns)); diff != "" {
		t.Errorf("namespace after another Detach:\n%s", diff)
	}
}

// Whichever step fails, the namespace is as found.
func TestAttachFailsAtEachStep(t *testing.T) {
	f := newFabric(t, 1, 1500)
	ns := f.nodes[0]
	script(t, ns, `
		ip link add net1 type veth peer name far1 netns `+f.ns+`
		ip link set net1 up
		ip link set net1 down
		ip addr add 10.77.0.2/24 dev net1`) // down, with an address; its first up gave it a queue
	sure(t, ns)
	before := state(t, ns)
	links := mustRead(t, ns)
	if len(links) != 2 {
		t.Fatalf("links: %+v", links)
	}
	links[1].NIC.MAC = "02:00:00:00:00:77"
	boom := errors.New("boom")
	steps := 0
	for at := 1; ; at++ {
		steps = 0
		a, err := attach(t.Context(), ns, owner, links, func(string) error {
			if steps++; steps == at {
				return boom
			}
			return nil
		})
		if err == nil {
			if err := a.Detach(t.Context()); err != nil {
				t.Fatal(err)
			}
		} else if !errors.Is(err, boom) {
			t.Fatalf("step %d: %v", at, err)
		}
		if diff := cmp.Diff(before, state(t, ns)); diff != "" {
			t.Fatalf("step %d (%v):\n%s", at, err, diff)
		}
		if a != nil {
			break
		}
	}
	if steps < 30 {
		t.Errorf("only %d steps: the hook is not everywhere", steps)
	}

	a, err := Attach(t.Context(), ns, owner, links)
	if err != nil {
		t.Fatal(err)
	}
	a.Close()
	for at := 1; ; at++ { // a Detach that fails anywhere is finished by the next
		s, err := openSession(ns)
		if err != nil {
			t.Fatal(err)
		}
		steps = 0
		s.fail = func(string) error {
			if steps++; steps == at {
				return boom
			}
			return nil
		}
		err = s.detach(t.Context(), links)
		s.close()
		if err != nil && !errors.Is(err, boom) {
			t.Fatalf("detach step %d: %v", at, err)
		}
		if again := Detach(t.Context(), ns, links); again != nil {
			t.Fatal(again)
		}
		if diff := cmp.Diff(before, state(t, ns)); diff != "" {
			t.Fatalf("detach step %d (%v):\n%s", at, err, diff)
		}
		if err == nil {
			break
		}
		a, err := Attach(t.Context(), ns, owner, links)
		if err != nil {
			t.Fatal(err)
		}
		a.Close()
	}
}

func TestAttachCancelled(t *testing.T) {
	f := newFabric(t, 1, 1500)
	before := state(t, f.nodes[0])
	links := mustRead(t, f.nodes[0])
	ctx, cancel := context.WithCancel(t.Context())
	steps := 0
	_, err := attach(ctx, f.nodes[0], owner, links, func(string) error {
		if steps++; steps == 12 {
			cancel()
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error: %v", err)
	}
	if diff := cmp.Diff(before, state(t, f.nodes[0])); diff != "" {
		t.Error(diff)
	}
}

func TestAttachRepeated(t *testing.T) {
	f := newFabric(t, 1, 1500)
	a, links := f.attach(t, 0)
	wired := state(t, f.nodes[0])
	if _, err := Attach(t.Context(), f.nodes[0], owner, links); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("taps are held: %v", err)
	}
	if _, err := Attach(t.Context(), f.nodes[0], Owner{Node: owner.Node, VM: "test/other"},
		links); !errdefs.IsAlreadyExists(err) {
		t.Errorf("another owner: %v", err)
	}
	if diff := cmp.Diff(wired, state(t, f.nodes[0])); diff != "" {
		t.Errorf("refused Attach changed the namespace:\n%s", diff)
	}
	a.Close()
	again, err := Attach(t.Context(), f.nodes[0], owner, links)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if diff := cmp.Diff(wired, state(t, f.nodes[0])); diff != "" {
		t.Errorf("second Attach changed the namespace:\n%s", diff)
	}
	if err := again.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	newGuest(t, again, 0).serve(t)
	if err := echo(f.ns, "10.88.0.2", 100, 10*time.Second); err != nil {
		t.Error(err)
	}
}

// A Detach or Leave that comes again, after another VM has attached the same interface, touches
// nothing of that VM.
func TestDetachAfterAnotherVM(t *testing.T) {
	f := newFabric(t, 1, 1500)
	ns := f.nodes[0]
	first, err := Own(owner, mustRead(t, ns))
	if err != nil {
		t.Fatal(err)
	}
	a, err := Attach(t.Context(), ns, owner, first)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Detach(t.Context()); err != nil {
		t.Fatal(err)
	}
	settled(t, ns)
	other := Owner{Node: owner.Node, VM: "test/other", Generation: 1}
	second, err := Own(other, mustRead(t, ns))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Attach(t.Context(), ns, owner, second); !errdefs.IsInvalidArgument(err) {
		t.Errorf("links of another owner: %v", err)
	}
	b, err := Attach(t.Context(), ns, other, second)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	wired := state(t, ns)
	for name, again := range map[string]func() error{
		"Detach": func() error { return Detach(t.Context(), ns, first) },
		"Leave":  func() error { return DetachMoved(t.Context(), ns, first) },
	} {
		if err := again(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(wired, state(t, ns)); diff != "" {
			t.Errorf("%s of the VM before changed the namespace:\n%s", name, diff)
		}
	}
	if err := b.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	newGuest(t, b, 0).serve(t)
	if err := echo(f.ns, "10.88.0.2", 100, 10*time.Second); err != nil {
		t.Error(err)
	}
}

// A wake with another MAC than the CNI chose: the wire sees the guest's, and Detach
// gives the interface its own back.
func TestAttachGuestMAC(t *testing.T) {
	f := newFabric(t, 1, 1500)
	before := state(t, f.nodes[0])
	const mac = "02:11:22:33:44:55"
	a, links := f.attach(t, 0, func(l *Link) { l.NIC.MAC = mac })
	for _, name := range []string{"eth0", "tap0"} {
		if got := sh(t, f.nodes[0], "ip", "-o", "link", "show", name); !strings.Contains(got, mac) {
			t.Errorf("MAC of %s: %s", name, got)
		}
	}
	if err := a.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	newGuest(t, a, 0).serve(t)
	if err := echo(f.ns, "10.88.0.2", 100, 10*time.Second); err != nil {
		t.Error(err)
	}
	if got := sh(t, f.ns, "ip", "neigh", "show", "10.88.0.2"); !strings.Contains(got, mac) {
		t.Errorf("the network sees %s", got)
	}
	if err := a.Detach(t.Context()); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(before, state(t, f.nodes[0])); diff != "" {
		t.Errorf("MAC of %s not restored:\n%s", links[0].Interface, diff)
	}
}

func TestAttachRefusesSmallerMTU(t *testing.T) {
	f := newFabric(t, 1, 1400)
	links := mustRead(t, f.nodes[0])
	links[0].NIC.MTU = 1500
	before := state(t, f.nodes[0])
	_, err := Attach(t.Context(), f.nodes[0], owner, links)
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "1400") ||
		!strings.Contains(err.Error(), "1500") {
		t.Errorf("both values of the MTU are not named: %v", err)
	}
	if diff := cmp.Diff(before, state(t, f.nodes[0])); diff != "" {
		t.Error(diff)
	}
}

// Adoption: the VMM keeps its tap, the new shim has the links alone.
func TestOpen(t *testing.T) {
	f := newFabric(t, 1, 1500)
	before := state(t, f.nodes[0])
	first, links := f.attach(t, 0)
	newGuest(t, first, 0).serve(t)
	first.Close()
	a, err := Open(t.Context(), f.nodes[0], links)
	if err != nil {
		t.Fatal(err)
	}
	if len(a.Taps()) != 0 {
		t.Error("Open opened a tap")
	}
	if err := a.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := echo(f.ns, "10.88.0.2", 100, 10*time.Second); err != nil {
		t.Error(err)
	}
	if err := a.Announce(t.Context()); err != nil {
		t.Error(err)
	}
	if err := a.Detach(t.Context()); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(before, state(t, f.nodes[0])); diff != "" {
		t.Error(diff)
	}
	if err := a.Up(t.Context()); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Up after Detach: %v", err)
	}
	if _, err := Open(t.Context(), f.nodes[0], links); !errdefs.IsNotFound(err) {
		t.Errorf("Open without a tap: %v", err)
	}
}

func TestDetachAfterEverythingIsGone(t *testing.T) {
	f := newFabric(t, 1, 1500)
	a, links := f.attach(t, 0)
	sh(t, f.nodes[0], "ip", "link", "del", "eth0")
	if err := Detach(t.Context(), f.nodes[0], links); err != nil {
		t.Errorf("interface gone: %v", err)
	}
	if got := interfaces(t, f.nodes[0]); len(got) != 1 {
		t.Errorf("left: %v", got)
	}
	a.Close()
	if err := DeleteNamespace(f.nodes[0]); err != nil {
		t.Fatal(err)
	}
	if err := Detach(t.Context(), f.nodes[0], links); err != nil {
		t.Errorf("namespace gone: %v", err)
	}
	if err := os.WriteFile(f.nodes[0], nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Detach(t.Context(), f.nodes[0], links); err != nil {
		t.Errorf("namespace unmounted: %v", err)
	}
}
