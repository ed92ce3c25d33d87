//go:build integration

package pod

import (
	"context"
	"testing"
)

// TestMove: a pod of three containers moves to another node while it runs, and back, by crictl on both. Memory, shared
// memory, files and logs go on. The pod has a user namespace, and keeps its ids. It waits until its containers are made
// where it goes.
func TestMove(t *testing.T) {
	a, b := pair(t)
	a.users, b.users = 100000, 300000
	before := a.sleeper("uid-1")
	nonce, was := before.state()
	for _, to := range []*node{b, a} {
		over := before.n.order(func(ctx context.Context) error {
			_, err := before.n.WaitingMove(ctx)
			return err
		}, "migrate", "team.sleeper", "--to", to.Name)
		after := to.sleeper("uid-1")
		if err := <-over; err != nil {
			t.Fatalf("move to %s: %v", to.Name, err)
		}
		is := after.goesOn(before, nonce, was)
		after.hasUsers(a)
		for _, id := range []string{before.count, before.reader} {
			before.n.eventually("the end of a container that left", has(`"exitCode": 0`), "inspect", id)
		}
		before.remove()
		if vmms, err := before.n.VMMs(); err != nil || len(vmms) != 0 {
			t.Errorf("VMMs %v are left on the node that the pod has left: %v", vmms, err)
		}
		before, was = after, is
	}
	before.remove()
}
