//go:build integration

package crash

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"godwit.dev/godwit/integration/harness"
)

// verbWorld is a node with one VM, which all cases share as long as it lives.
type verbWorld struct {
	*harness.Harness
	*pointed
	n       *harness.Node
	empty   harness.Inventory
	next    string // a file to copy into the VM
	digest  string // of a checkpoint
	content string // of next
}

// mustBe answers the world of the last case, or a new one.
func (w *verbWorld) mustBe(t *testing.T, into **verbWorld) *verbWorld {
	if w == nil {
		w = newVerbWorld(t)
		*into = w
	}
	return w
}

func newVerbWorld(t *testing.T) *verbWorld {
	dir, p := points(t)
	h := harness.New(t, harness.Options{Registry: harness.PlainHTTP, Godwitd: true, Images: true, Programs: p.programs,
		Config: plain})
	w := &verbWorld{Harness: h, pointed: p, n: h.Node(0), next: filepath.Join(dir, "next"),
		content: strings.Repeat("new\n", 1<<16)}
	if err := errors.Join(os.WriteFile(w.next, []byte(w.content), 0o644), p.forget(w.n)); err != nil {
		t.Fatal(err)
	}
	empty, err := w.n.Inventory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w.empty = empty
	return w
}

func (w *verbWorld) godwit(ctx context.Context, args ...string) error {
	_, err := w.ask(ctx, args...)
	return err
}

func (w *verbWorld) ask(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callBound)
	defer cancel()
	out, err := w.n.RunGodwit(ctx, args...)
	return out, errors.Join(err, ctx.Err())
}

// vmSeen is what godwit ps says of the VM.
type vmSeen struct {
	VM           struct{ ID string }
	Name, Status string
}

// seen answers what ps says; nil: there is no VM.
func (w *verbWorld) seen(ctx context.Context) (*vmSeen, error) {
	out, err := w.ask(ctx, "ps", "-a", "-o", "json")
	if err != nil {
		return nil, err
	}
	var list struct{ VMs []*vmSeen }
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return nil, fmt.Errorf("read what ps says: %w: %s", err, out)
	}
	i := slices.IndexFunc(list.VMs, func(vm *vmSeen) bool { return vm.VM.ID == verbVM })
	if i < 0 {
		return nil, nil
	}
	return list.VMs[i], nil
}

// ready brings the VM into the state that a verb begins with.
func (w *verbWorld) ready(ctx context.Context, needs vmState) error {
	vm, err := w.seen(ctx)
	switch {
	case err != nil:
		return err
	case needs == isAbsent:
		return w.removeAgain(ctx)
	case vm == nil:
		if err := w.godwit(ctx, runArgs...); err != nil {
			return err
		}
		if err := w.inside(ctx, "", "echo mark >/mark; echo old >/data; sync"); err != nil {
			return err
		}
		out, err := w.ask(ctx, "checkpoint", verbVM, "-o", "json")
		if err != nil {
			return err
		}
		var done struct{ Operation struct{ Digest string } }
		if err := json.Unmarshal([]byte(out), &done); err != nil || done.Operation.Digest == "" {
			return fmt.Errorf("read what checkpoint says: %v: %s", err, out)
		}
		w.digest = done.Operation.Digest
	}
	if needs == isStopped {
		return w.repeat(ctx, "", "stop", verbVM)
	}
	return w.startAgain(ctx)
}

// inside runs a script in the VM, which is to say want.
func (w *verbWorld) inside(ctx context.Context, want, script string) error {
	return harness.Poll(ctx, settleBound, func(ctx context.Context) error {
		out, err := w.ask(ctx, "exec", verbVM, "sh", "-c", script)
		if err == nil && strings.TrimSpace(out) != want {
			err = fmt.Errorf("the VM says %q to %q, want %q", out, script, want)
		}
		return err
	})
}

// shim of the VM; one that has no journal yet is the program at the point.
func (w *verbWorld) shim(pid int) (int, error) {
	if own := note(w.n, verbVM).Shim.PID; own != 0 {
		return hostPID(w.n, own)
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || !strings.Contains(string(line), "containerd-shim-godwit") {
		return 0, fmt.Errorf("%w: %q stands at the point: %v", errNoShim, line, err)
	}
	return pid, nil
}
