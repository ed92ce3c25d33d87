//go:build integration

package pod

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"godwit.dev/godwit/integration/harness"
)

// migrate orders a move, and returns once it says that it waits for the pod. The channel has its outcome.
func (n *node) migrate(args ...string) <-chan error {
	n.t.Helper()
	over := make(chan error, 1)
	go func() {
		out, err := n.RunGodwit(n.t.Context(), append([]string{"-n", "k8s.io", "migrate", "team.sleeper"}, args...)...)
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		over <- err
	}()
	err := harness.Poll(n.t.Context(), time.Minute, func(ctx context.Context) error {
		out, err := n.RunGodwit(ctx, "-n", "k8s.io", "migrations", "-o", "json")
		if err == nil && !strings.Contains(out, "waits on node") {
			err = fmt.Errorf("the move does not wait: %s", out)
		}
		return err
	})
	if err != nil {
		select {
		case failed := <-over:
			err = fmt.Errorf("%w: %w", failed, err)
		default:
		}
		n.t.Fatal(err)
	}
	return over
}

// TestMove: a pod of three containers moves to another node while it runs, and back, by crictl on both. Memory, shared
// memory, files and logs go on. It waits until its containers are made where it goes.
func TestMove(t *testing.T) {
	a, b := pair(t)
	before := a.sleeper("uid-1")
	nonce, was := before.state()
	for _, to := range []*node{b, a} {
		over := before.n.migrate("--to", to.Name)
		after := to.sleeper("uid-1")
		if err := <-over; err != nil {
			t.Fatalf("move to %s: %v", to.Name, err)
		}
		now, is := after.state()
		if now != nonce || is < was {
			t.Errorf("run %s had counted to %d; after the move run %s has counted to %d", nonce, was, now, is)
		}
		if out := to.crictl("exec", after.reader, "cat", "/kept"); out != "kept" {
			t.Errorf("a file of a container has %q after the move", out)
		}
		to.eventually("logs", has("count"), "logs", after.count)
		first, second := before.counts(), after.counts()
		if len(first) == 0 || len(second) == 0 || second[0] != first[len(first)-1]+1 {
			t.Errorf("the log ends with %v on the one node, and begins with %v on the other", first[max(0, len(first)-3):],
				second[:min(len(second), 3)])
		}
		for _, id := range []string{before.count, before.reader} {
			before.n.eventually("the end of a container that left", has(`"exitCode": 0`), "inspect", id)
		}
		before.remove()
		if vms, err := before.n.VMMs(); err != nil || vms != 0 {
			t.Errorf("%d VMMs are left on the node that the pod has left: %v", vms, err)
		}
		before, was = after, is
	}
	before.remove()
}
