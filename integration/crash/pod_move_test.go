//go:build integration

package crash

import (
	"context"
	"errors"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/integration/harness"
)

// leave moves the pod away from the node that is hurt.
func (w *sleepWorld) leave(ctx context.Context) error { return w.move(ctx, w.at, 1-w.at) }

// come moves the pod to the node that is hurt.
func (w *sleepWorld) come(ctx context.Context) error { return w.move(ctx, 1-w.at, w.at) }

// move orders a move. It makes the pod where it goes as soon as the move waits for it. If that fails, it calls off the
// move.
func (w *sleepWorld) move(ctx context.Context, from, to int) error {
	ctx, cancel := context.WithTimeout(ctx, callBound)
	defer cancel()
	source := w.nodes[from]
	over := make(chan error, 1)
	go func() {
		_, err := source.RunGodwit(ctx, "-n", "k8s.io", "migrate", sleepingVM, "--to", w.nodes[to].Name, "--mode", "live")
		over <- err
	}()
	id := ""
	err := harness.Poll(ctx, settleBound, func(ctx context.Context) (err error) {
		if len(over) > 0 {
			return nil
		}
		id, err = w.nodes[0].WaitingMove(ctx)
		return err
	})
	if err == nil && id == "" {
		return <-over
	}
	if err == nil {
		err = w.make(ctx, to)
	}
	if err != nil && id != "" {
		// That it is too late is no error of this call.
		_, _ = w.nodes[0].RunGodwit(ctx, "abort", id)
	}
	return errors.Join(err, <-over)
}

// locate notes which node has the pod after a move, and removes what CRI of the other one has of it.
func (w *sleepWorld) locate(ctx context.Context, owner *nodev1.Owner) error {
	for i, n := range w.nodes {
		if owner.GetNode() == n.Name {
			w.at = i
		}
	}
	return w.nodes[1-w.at].remove(ctx)
}
