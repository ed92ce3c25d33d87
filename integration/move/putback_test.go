//go:build integration

package move

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"godwit.dev/godwit/integration/harness"
)

// says waits until godwit's answer to args, or its refusal, has all of these words.
func says(t *testing.T, n *harness.Node, args []string, words ...string) {
	t.Helper()
	err := harness.Poll(t.Context(), bound, func(ctx context.Context) error {
		out, err := n.RunGodwit(ctx, args...)
		if err != nil {
			out += err.Error()
		}
		for _, w := range words {
			if !strings.Contains(out, w) {
				return fmt.Errorf("godwit %s does not say %q: %s", strings.Join(args, " "), w, out)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// lifted is a generation of an incarnation: a second times 2^20.
var lifted = regexp.MustCompile(`\b1[0-9]{15}\b`)

// putBack ends the controller's godwitd, replaces its store by a copy, and starts it again, as on
// another host: it remembers nothing of the store.
func putBack(t *testing.T, n *harness.Node, copied []byte) {
	t.Helper()
	if err := n.Godwitd.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(n.Dir, "lib", "records.db"), copied, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(n.Dir, "lib", "store-seen.json")); err != nil {
		t.Fatal(err)
	}
	if err := n.StartGodwitd(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// putBackAtStart puts the copy back once more, with an order for the start: no record has changed
// before all nodes have reported. Node b, which has nothing of the VM, is retired.
func putBackAtStart(t *testing.T, a, b *harness.Node, copied []byte) {
	t.Helper()
	if err := b.Godwitd.Kill(); err != nil {
		t.Fatal(err)
	}
	a.Godwit(t, "controller", "restore", "--at-start")
	putBack(t, a, copied)
	says(t, a, []string{"controller", "status"}, "nodes have not reported: b")
	refused(t, a, "what they hold: b", "hibernate", vm)
	a.Godwit(t, "controller", "retire", "b")
	says(t, a, []string{"controller", "status"}, "records change")
	if err := b.StartGodwitd(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out := a.Godwit(t, "ps"); !strings.Contains(out, "running") {
		t.Errorf("the VM is not a's any more: %s", out)
	}
}

// The store of the records is put back from a copy that says that a VM runs at a; it has gone to b since. Without
// the command no claim on the VM is admitted as soon as b has spoken, and no node ends it. With it the VM is b's,
// sleeps and wakes again under generations above all others. No peer on the wire has met two of it.
func TestStorePutBack(t *testing.T) {
	h := harness.New(t, harness.Options{Nodes: 2, Registry: harness.PlainHTTP, Godwitd: true, Images: true})
	a, b := h.Node(0), h.Node(1)
	a.CheckClean(t)
	b.CheckClean(t)
	watch := listen(t, h)
	at := boot(t, a, watch).From
	before := ask(t, h, at)
	heard(t, a, "a", "b")

	if err := a.Godwitd.Stop(); err != nil { // as the documentation says: a copy is made while it is stopped
		t.Fatal(err)
	}
	copied, err := os.ReadFile(filepath.Join(a.Dir, "lib", "records.db"))
	if err != nil {
		t.Fatal(err)
	}
	if err := a.StartGodwitd(t.Context()); err != nil {
		t.Fatal(err)
	}
	heard(t, a, "a", "b")
	if m := migrate(t, a, vm, "--to", "b", "--mode", "cold"); m.Operation.Phase != "succeeded" {
		t.Fatalf("%+v", m)
	}
	watch.Mark("moved")
	after(t, watch, "moved")

	putBack(t, a, copied)
	says(t, a, []string{"controller", "status"}, "node b says", "default/"+vm, "nobody claims it",
		"godwit controller restore")
	says(t, a, []string{"nodes"}, "node b says")
	says(t, a, []string{"doctor", "-v"}, "contradicted by nodes [b]")
	refused(t, a, "godwit controller restore", "hibernate", vm)
	if _, err := a.RunCtr(t.Context(), "task", "start", "-d", vm); err == nil {
		t.Error("a started the VM that b runs")
	}
	watch.Mark("refused")
	after(t, watch, "refused") // it runs on

	refused(t, b, "order it there or on the controller", "controller", "restore")
	a.Godwit(t, "controller", "restore")
	refused(t, a, "put back from a copy", "hibernate", vm)
	says(t, a, []string{"controller", "status"}, "records change")
	if j := journal(b, vm); j.Phase != "OWN" {
		t.Fatalf("the VM at b is %+v", j)
	}
	// Its shim has the number of before: the move's commit lifts it, and the destination takes that.
	if m := migrate(t, a, vm, "--to", "a", "--mode", "cold"); m.Operation.Phase != "succeeded" {
		t.Fatalf("%+v", m)
	}
	a.Godwit(t, "hibernate", vm)
	a.Godwit(t, "wake", "--on", "a", vm)
	watch.Mark("woken")
	after(t, watch, "woken")
	now := ask(t, h, at)
	if now.Nonce != before.Nonce || now.PID != before.PID || now.Counter <= before.Counter {
		t.Errorf("the VM is another one: %+v, was %+v", now, before)
	}
	if out := a.Godwit(t, "ps", "-o", "json"); !lifted.MatchString(out) {
		t.Errorf("the next owner's generation is none of an incarnation: %s", out)
	}
	putBackAtStart(t, a, b, copied)
	if doubles, back := watch.Twice(); doubles+back > 0 {
		t.Errorf("seen twice: %d doubled, %d out of order", doubles, back)
	}
	a.Ctr(t, "task", "rm", "--force", vm)
	for _, n := range []*harness.Node{a, b} {
		n.Ctr(t, "container", "rm", vm)
	}
	a.Godwit(t, "rm", vm, "--force")
}
