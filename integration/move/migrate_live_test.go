//go:build integration

package move

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

// Godwit migrate moves a VM with a user namespace live, by the controller's engine, there and back. What the
// store has of it is known there too, so that the next snapshot is small.
func TestMigrateLive(t *testing.T) {
	h := harness.New(t, harness.Options{Nodes: 2, Registry: harness.PlainHTTP, Godwitd: true, Images: true})
	a, b := h.Node(0), h.Node(1)
	a.CheckClean(t)
	b.CheckClean(t)
	watch := listen(t, h)
	at := boot(t, a, watch, mapped(false)...).From
	before := ask(t, h, at)
	heard(t, a, "a", "b")
	whole, full := take(t, a, "checkpoint", vm)
	seen := tellTransfer(t, b)
	u := newUDP(t, h, at)
	arps := sniffARP(t, h, a, b)
	for i, to := range []string{"b", "a"} {
		u.begin()
		order := []string{vm, "--to", to, "--mode", "live"}
		if to == "b" { // slow enough to be looked at
			order = append(order, "--bandwidth", "24MiB")
		}
		m := migrate(t, a, order...)
		watch.Mark(to)
		if m.Operation.Phase != "succeeded" || m.Operation.Mode != "live" {
			t.Fatalf("to %s: %+v", to, m)
		}
		t.Logf("to %s: stood still %.0f ms: copy %.0f, vote %.1f, commit %.1f, run %.0f", to, m.Figures.Downtime,
			m.Figures.Copy, m.Figures.Vote, m.Figures.Commit, m.Figures.Run)
		after(t, watch, to)
		u.end(i, 1-i)
		// Four rounds of the node's, and one of the guest's. A source announces its VM in four rounds, too.
		all := map[string]int{"b": 9, "a": 17}[to]
		if n := gratuitous(t, arps[to], at); n < 2 || n > all {
			t.Errorf("to %s: %d gratuitous ARP packets, %d are all rounds", to, n, all)
		}
		now := ask(t, h, at)
		if now.Nonce != before.Nonce || now.PID != before.PID || now.BootID != before.BootID || !now.FileOK ||
			now.Counter <= before.Counter {
			t.Errorf("to %s: the VM is another one: %+v, was %+v", to, now, before)
		}
		hasUsers(t, h.Node(1-i), "at-"+to)
		if to == "b" {
			r, pushed := take(t, b, "checkpoint", vm)
			if pushed*4 > full {
				t.Errorf("a checkpoint after a move pushed %d bytes, the one before it %d", pushed, full)
			}
			if first, before := r.looked(t), whole.looked(t); first*2 > before {
				t.Errorf("the checkpoint after a move looked at %d bytes first, the one before it at %d", first, before)
			}
		}
	}
	if err := <-seen; err != nil {
		t.Error(err)
	}
	if doubles, back := watch.Twice(); doubles+back > 0 {
		t.Errorf("seen twice: %d doubled, %d out of order", doubles, back)
	}
	a.Ctr(t, "task", "rm", "--force", vm)
	for _, n := range []*harness.Node{a, b} {
		_, _ = n.RunCtr(t.Context(), "container", "rm", vm)
	}
	a.Godwit(t, "rm", vm, "--force")
	// What godwitd made for it here is free at once, also for who knows containerd's tools alone.
	a.Ctr(t, "run", "--rm", "--cni", "--runtime", "io.containerd.godwit.v1", images.Busybox, vm, "true")
}

// tellTransfer lists the moves, on the node that is no controller, until one tells its pass
// and what it has sent.
func tellTransfer(t *testing.T, n *harness.Node) <-chan error {
	seen := make(chan error, 1)
	go func() {
		seen <- harness.Poll(t.Context(), bound, func(ctx context.Context) error {
			out, err := n.RunGodwit(ctx, "-o", "json", "migrations")
			if err != nil {
				return err
			}
			var list struct {
				Moves []struct {
					Transfer struct {
						Pass int
						Sent uint64 `json:"sentBytes"`
					}
				}
			}
			if err := json.Unmarshal([]byte(out), &list); err != nil {
				return err
			}
			for _, m := range list.Moves {
				if m.Transfer.Pass > 0 && m.Transfer.Sent != 0 {
					return nil
				}
			}
			return fmt.Errorf("no move tells of its passes: %s", out)
		})
	}()
	return seen
}
