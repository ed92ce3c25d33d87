//go:build integration

package harness

import (
	"strings"
	"testing"
)

// Two godwitds form a cluster by init, token and join, and come back after a SIGKILL.
func TestCluster(t *testing.T) {
	h := New(t, Options{Nodes: 2, Registry: PlainHTTP, Godwitd: true})
	for _, n := range h.Nodes() {
		if out := n.Godwit(t, "ps", "-o", "json"); !strings.Contains(out, `"vms"`) {
			t.Errorf("ps on %s: %s", n.Name, out)
		}
		if err := n.Godwitd.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := n.StartGodwitd(t.Context()); err != nil {
			t.Fatal(err)
		}
		n.Godwit(t, "ps")
	}
}
