//go:build integration

package move

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/observer"
)

// finalSnapshot is: with a registry that is full the VM runs on, until its deletion is called off. With a registry
// that is away it runs on and waits, over a restart of godwitd too. Once the registry is back it is deleted, and
// what it was wakes.
func finalSnapshot(t *testing.T, h *harness.Harness, n *harness.Node, watch *observer.Watcher) {
	before := watch.Latest()
	ps := func(what string, ok func(string) bool) {
		t.Helper()
		err := harness.Poll(t.Context(), bound, func(context.Context) error {
			if out := n.Godwit(t, "ps", "-o", "wide"); !ok(out) {
				return fmt.Errorf("ps: %s", out)
			}
			return nil
		})
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	refused := func(status int, refuses func(*http.Request) bool) {
		t.Helper()
		h.Door.SetFault(func(_ int, r *http.Request) harness.Fault {
			if refuses(r) {
				return harness.Fault{Status: status}
			}
			return harness.Fault{}
		})
		n.Godwit(t, "rm", "--final-snapshot", "--detach", vm)
		ps("a try fails", func(out string) bool { return strings.Contains(out, "running, to be removed (failed tries: 1)") })
	}
	refused(http.StatusInsufficientStorage, func(r *http.Request) bool {
		return r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/manifests/")
	})
	watch.Mark("full")
	after(t, watch, "full")
	n.Godwit(t, "rm", "--cancel", vm)
	ps("it is called off", func(out string) bool {
		return strings.Contains(out, "running") && !strings.Contains(out, "to be removed")
	})

	refused(http.StatusServiceUnavailable, func(r *http.Request) bool { return r.Method != http.MethodGet })
	if err := n.Godwitd.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := n.StartGodwitd(t.Context()); err != nil {
		t.Fatal(err)
	}
	watch.Mark("away")
	after(t, watch, "away")
	h.Door.SetFault(nil)
	ps("it sleeps", func(out string) bool {
		return strings.Contains(out, "asleep") && !strings.Contains(out, "to be removed")
	})
	if tasks, containers := n.Ctr(t, "task", "ls", "-q"), n.Ctr(t, "container", "ls", "-q"); strings.Contains(
		tasks+containers, vm) {
		t.Errorf("left of it: tasks %q, containers %q", tasks, containers)
	}
	watch.Mark("wake")
	n.Godwit(t, "wake", "--on", n.Name, vm)
	if now := after(t, watch, "wake"); now.Nonce != before.Nonce || now.Counter <= before.Counter {
		t.Errorf("the VM is another one: %+v, was %+v", now, before)
	}
}
