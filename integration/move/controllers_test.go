//go:build integration

package move

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"godwit.dev/godwit/integration/harness"
)

// eventsOf are the lines in which a node tells the events of a move that is over.
func eventsOf(t *testing.T, n *harness.Node, operation string) (lines []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	out, err := n.RunGodwit(ctx, "watch", operation)
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for line := range strings.Lines(out) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return lines
}

// Three controllers have their records in one etcd. The one that drives a move is killed in the midst of it:
// another one finishes it, and no client sees the VM twice. Events have one numbering, whichever controller wrote
// them, and each tells all of them. The one that was killed comes back, and what it drives next ends as well.
func TestControllers(t *testing.T) {
	h := harness.New(t, harness.Options{Nodes: 3, Registry: harness.PlainHTTP, Godwitd: true, Images: true, Etcd: true})
	a, b, c := h.Node(0), h.Node(1), h.Node(2)
	watch := listen(t, h)
	at := boot(t, a, watch, "--annotation", "godwit.dev/memory=96MiB").From
	before := ask(t, h, at)
	heard(t, c, "a", "b", "c")

	reached, open := holdManifest(h)
	t.Cleanup(open)
	c.Godwit(t, "migrate", vm, "--to", "b", "--mode", "cold", "--operation", "first", "--detach")
	<-reached
	if err := c.Godwitd.Kill(); err != nil {
		t.Fatal(err)
	}
	open()
	err := harness.Poll(t.Context(), bound, func(ctx context.Context) error {
		if m := migrations(t, a, "--all")[vm]; m.Operation.Phase != "succeeded" {
			return fmt.Errorf("the move is in %s: %s", m.Operation.Phase, m.Operation.Reason)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	watch.Mark("b")
	after(t, watch, "b")
	if err := c.StartGodwitd(t.Context()); err != nil {
		t.Fatal(err)
	}
	heard(t, c, "a", "b", "c")
	if m := migrate(t, c, vm, "--to", "c", "--mode", "live", "--operation",
		"second"); m.Operation.Phase != "succeeded" {
		t.Fatalf("the second move: %+v", m)
	}
	watch.Mark("c")
	if sign := after(t, watch, "c"); sign.From != at {
		t.Errorf("it is at %s, was at %s", sign.From, at)
	}
	now := ask(t, h, at)
	if now.Nonce != before.Nonce || now.PID != before.PID || now.BootID != before.BootID || !now.FileOK ||
		now.Counter <= before.Counter {
		t.Errorf("the VM is another one: %+v, was %+v", now, before)
	}
	if doubles, back := watch.Twice(); doubles+back > 0 {
		t.Errorf("seen twice: %d doubled, %d out of order", doubles, back)
	}
	wantEvents(t, a, b, c)
	c.Ctr(t, "task", "rm", "--force", vm)
	for _, n := range h.Nodes() {
		_, _ = n.RunCtr(t.Context(), "container", "rm", vm)
	}
	c.Godwit(t, "rm", vm, "--force")
}

// wantEvents compares what each controller tells of both moves.
func wantEvents(t *testing.T, nodes ...*harness.Node) {
	t.Helper()
	told := map[string][]string{}
	for _, n := range nodes {
		told[n.Name] = append(eventsOf(t, n, "first"), eventsOf(t, n, "second")...)
	}
	for name, lines := range told {
		if strings.Join(lines, "\n") != strings.Join(told["a"], "\n") {
			t.Errorf("%s tells %q, a %q", name, lines, told["a"])
		}
	}
	ids := map[string]bool{}
	for _, want := range []string{"MigrationStarted", "Switching", "Committed", "Succeeded"} {
		if n := strings.Count(strings.Join(told["a"], "\n"), " "+want+" "); n < 2 {
			t.Errorf("%d events %s in %q", n, want, told["a"])
		}
	}
	for _, line := range told["a"] {
		id, _, _ := strings.Cut(line, " ")
		if ids[id] {
			t.Errorf("event %s twice in %q", id, told["a"])
		}
		ids[id] = true
	}
}
