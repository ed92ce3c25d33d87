//go:build integration

package move

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

// Both nodes of a live move tell of it in their events, the node without the controller too: it begins, switches and
// is done. The log of the VM that came says where it was before, and its lines go on there without one lost or twice.
func TestEventsOfAMove(t *testing.T) {
	h := harness.New(t, harness.Options{Nodes: 2, Registry: harness.PlainHTTP, Godwitd: true, Images: true})
	a, b := h.Node(0), h.Node(1)
	heard(t, a, "a", "b")
	a.Godwit(t, "run", "-d", "--name", "web", images.Busybox, "sh", "-c",
		"i=0; while :; do echo line $i; i=$((i+1)); sleep 1; done")
	a.Godwit(t, "migrate", "web", "--to", "b", "--mode", "live")
	for _, n := range []*harness.Node{a, b} {
		err := harness.Poll(t.Context(), bound, func(ctx context.Context) error {
			text, err := n.RunGodwit(ctx, "events", "--since", "0", "--until", "0s", "-f", "vm=web", "-f", "type=move",
				"--format", "{{.phase}} {{.source}} {{.destination}}")
			want := []string{"begun a b", "switching a b", "committed a b", "done a b"}
			if got := strings.Split(strings.TrimSpace(text), "\n"); err == nil && !slices.Equal(got, want) {
				err = fmt.Errorf("node %s tells %q, want %q", n.Name, got, want)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
		t.Log(n.Name, "\n", n.Godwit(t, "events", "--since", "0", "--until", "0s"))
	}
	err := harness.Poll(t.Context(), bound, func(ctx context.Context) error {
		there, err := b.RunGodwit(ctx, "logs", "web")
		if err == nil && strings.Count(there, "\n") < 2 {
			err = fmt.Errorf("the log on b: %q", there)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	all := a.Godwit(t, "logs", "web") + b.Godwit(t, "logs", "web")
	for i, line := range strings.Split(strings.TrimSpace(all), "\n") {
		if line != fmt.Sprintf("line %d", i) {
			t.Fatalf("line %d is %q", i, line)
		}
	}
	if !strings.Contains(b.Godwit(t, "logs", "-t", "web"), "Z line ") {
		t.Error("lines on b have no times")
	}
	b.Godwit(t, "stop", "--time", "0", "web")
	b.Godwit(t, "rm", "-f", "web")
}
