//go:build integration

package network

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
)

// A late Detach or Leave that comes in the midst of another VM's Attach, at whatever step, changes
// nothing of what that one makes.
func TestDetachAmidAnotherAttach(t *testing.T) {
	f := newFabric(t, 1, 1500)
	ns := f.nodes[0]
	sure(t, ns)
	other := Owner{Node: owner.Node, VM: "test/other", Generation: 1}
	first, err := Own(owner, mustRead(t, ns))
	if err != nil {
		t.Fatal(err)
	}
	second, err := Own(other, mustRead(t, ns))
	if err != nil {
		t.Fatal(err)
	}
	// At the step of that number, if there is one, late runs; one that is let go on meanwhile ends at once.
	attachAmid := func(at int, late func() error) (steps int, wired []string) {
		done := make(chan error, 1)
		b, err := attach(t.Context(), ns, other, second, func(string) error {
			if steps++; steps == at {
				go func() { done <- late() }()
				select {
				case err := <-done:
					done <- err
				case <-time.After(200 * time.Millisecond):
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if steps >= at && at > 0 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		wired = anyOf(state(t, ns))
		if err := b.Detach(t.Context()); err != nil {
			t.Fatal(err)
		}
		return steps, wired
	}
	steps, want := attachAmid(0, nil)
	if steps < 10 {
		t.Fatalf("%d steps", steps)
	}
	for at := range steps {
		for name, late := range map[string]func() error{
			"Detach": func() error { return Detach(t.Context(), ns, first) },
			"Leave":  func() error { return DetachMoved(t.Context(), ns, first) },
		} {
			if _, wired := attachAmid(at+1, late); !slices.Equal(wired, want) {
				t.Errorf("%s before step %d:\n%s", name, at+1, cmp.Diff(want, wired))
			}
		}
	}
}

// An Attach that comes in the midst of the late Detach of another VM, at whatever step, is whole
// afterwards.
func TestAttachAmidAnotherDetach(t *testing.T) {
	f := newFabric(t, 1, 1500)
	ns := f.nodes[0]
	sure(t, ns)
	first, err := Own(owner, mustRead(t, ns))
	if err != nil {
		t.Fatal(err)
	}
	other := Owner{Node: owner.Node, VM: "test/other", Generation: 1}
	second, err := Own(other, mustRead(t, ns))
	if err != nil {
		t.Fatal(err)
	}
	attachAt := func(at int) (steps int, wired []string) {
		s, err := lockedSession(t.Context(), ns)
		if err != nil {
			t.Fatal(err)
		}
		defer s.close()
		type answer struct {
			b   *Attachment
			err error
		}
		done := make(chan answer, 1)
		begin := func() {
			b, err := Attach(t.Context(), ns, other, second)
			done <- answer{b, err}
		}
		s.fail = func(string) error {
			if steps++; steps == at {
				go begin()
				for deadline := time.Now().Add(200 * time.Millisecond); len(done) == 0 && time.Now().Before(deadline); {
					time.Sleep(time.Millisecond)
				}
			}
			return nil
		}
		if err := s.detach(t.Context(), first); err != nil {
			t.Error(err)
		}
		s.unlock()
		if at == 0 {
			begin()
		}
		got := <-done
		if got.err != nil {
			t.Fatal(got.err)
		}
		wired = anyOf(state(t, ns))
		if err := got.b.Detach(t.Context()); err != nil {
			t.Fatal(err)
		}
		return steps, wired
	}
	steps, want := attachAt(0)
	if steps < 2 {
		t.Fatalf("%d steps", steps)
	}
	for at := range steps {
		if _, wired := attachAt(at + 1); !slices.Equal(wired, want) {
			t.Errorf("Attach before step %d:\n%s", at+1, cmp.Diff(want, wired))
		}
	}
}

// numbered are the kernel's own numbers: each attach gets others.
var numbered = regexp.MustCompile(`index [0-9]+|^[0-9]+: tap|([0-9a-f]{2}:){5}[0-9a-f]{2}`)

// anyOf is a state without such numbers, in an order that does not depend on them.
func anyOf(state []string) (out []string) {
	for _, line := range state {
		out = append(out, numbered.ReplaceAllString(line, "N"))
	}
	slices.Sort(out)
	return out
}

// A shim whose VM has gone neither silences, nor opens, nor takes over the tap of another VM that
// has the name of its own.
func TestTapOfAnotherVM(t *testing.T) {
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
	a.Close()
	stale, err := Open(t.Context(), ns, first)
	if err != nil {
		t.Fatal(err)
	}
	defer stale.Close()
	if err := Detach(t.Context(), ns, first); err != nil {
		t.Fatal(err)
	}
	other := Owner{Node: owner.Node, VM: "test/other", Generation: 1}
	second, err := Own(other, mustRead(t, ns))
	if err != nil {
		t.Fatal(err)
	}
	b, err := Attach(t.Context(), ns, other, second)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.Close() // as a VMM does that has closed its tap
	eventually(t, "the tap has no carrier", func() bool {
		return strings.Contains(sh(t, ns, "ip", "link", "show", "tap0"), "NO-CARRIER")
	})
	wired := state(t, ns)
	if err := stale.Down(t.Context()); err != nil {
		t.Errorf("Down: %v", err)
	}
	if err := stale.Up(t.Context()); !errdefs.IsNotFound(err) {
		t.Errorf("Up: %v, want NotFound", err)
	}
	if tap, err := stale.Tap(0); !errdefs.IsNotFound(err) {
		t.Errorf("Tap: %v, %v, want NotFound", tap, err)
	}
	if again, err := Open(t.Context(), ns, first); !errdefs.IsNotFound(err) {
		t.Errorf("Open: %v, %v, want NotFound", again, err)
	}
	if diff := cmp.Diff(wired, state(t, ns)); diff != "" {
		t.Errorf("the other VM's network changed:\n%s", diff)
	}
}
