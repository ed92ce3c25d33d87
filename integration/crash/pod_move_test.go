//go:build integration

package crash

import (
	"context"
	"errors"
	"fmt"
	"testing"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/internal/failpoint"
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

// sidecar ends with 7 once a client has hung up.
const sidecar = "nc -l -p 9000; exit 7"

// losesSidecar: a container ends after its node has heard the last of the pod, and before the pod stands still. Its end
// is told where the pod goes, and the other containers run on there.
func (w *sleepWorld) losesSidecar(t *testing.T) {
	ctx := t.Context()
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	w.sidecar = sidecar
	must("before", w.begin(ctx, "leave"))
	from, n := w.at, w.here()
	hold, err := n.arm(n.Node, edge{point{here, "pod.Pause", 1}, failpoint.Before})
	must("arm", err)
	defer hold.release()
	moved := make(chan error, 1)
	go func() { moved <- w.move(ctx, from, 1-from) }()
	_, err = hold.reached(ctx, func() error {
		if len(moved) > 0 {
			return errOver
		}
		return nil
	})
	must("reach the last pass", err)
	must("end the sidecar", n.hangUp(ctx))
	hold.release()
	must("move", <-moved)
	w.sidecar, w.at = "", 1-from
	must("where it went", w.counts(ctx))
	for at, want := range map[int]string{from: "0", w.at: "7"} {
		must("its end", w.nodes[at].endsWith(ctx, "sidecar", want))
	}
	must("leave", w.nodes[from].remove(ctx))
}

// hangUp connects to the pod's sidecar, and waits until that listens no more.
func (w *podWorld) hangUp(ctx context.Context) error {
	ip, err := w.crictl(ctx, "inspectp", "-o", "go-template", "--template", "{{.status.network.ip}}", w.pod)
	if err != nil {
		return err
	}
	dial := func(ctx context.Context) error {
		_, err := w.Run(ctx, "bash", "-c", "exec 3<>/dev/tcp/"+ip+"/9000")
		return err
	}
	if err := harness.Poll(ctx, settleBound, dial); err != nil {
		return err
	}
	return harness.Poll(ctx, settleBound, func(ctx context.Context) error {
		if dial(ctx) == nil {
			return errors.New("the sidecar listens still")
		}
		return nil
	})
}

// endsWith waits until CRI says that a container has ended with that status.
func (w *podWorld) endsWith(ctx context.Context, name, want string) error {
	return harness.Poll(ctx, settleBound, func(ctx context.Context) error {
		id, err := w.crictl(ctx, "ps", "-a", "-q", "--latest", "--name", "^"+name+"$")
		if err != nil {
			return err
		}
		got, err := w.crictl(ctx, "inspect", "-o", "go-template", "--template", "{{.status.state}} {{.status.exitCode}}", id)
		if err == nil && got != "CONTAINER_EXITED "+want {
			err = fmt.Errorf("on node %s container %s is %s, and is to end with %s", w.Name, name, got, want)
		}
		return err
	})
}
