//go:build integration

package crash

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/ttrpc"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/integration/critest"
	"godwit.dev/godwit/integration/harness"
)

// sleepingVM is the VM of the pod that sleeps and wakes.
const sleepingVM = "team.sleeper"

// counting is a workload that counts in memory, under a number that it makes at its start.
const counting = `nonce=$(cat /proc/sys/kernel/random/uuid); n=0; while :; do n=$((n+1))
echo "$nonce $n" > /dev/shm/next; mv /dev/shm/next /dev/shm/count; sleep 0.2; done`

// sleepWorld is two nodes of Kubernetes, and a pod of three containers that sleeps on the one and wakes on the other:
// one that ends, one that counts, and one that reads what the other one counts.
type sleepWorld struct {
	nodes   [2]*podWorld
	at      int       // the node that has the pod, or had it last; in a step, the one that is hurt
	readers [2]string // the ids of the container that reads
	sidecar string    // what a fourth container runs; empty: there is none
	nonce   string    // of the run that is there; empty: there is none
	count   int       // as seen last
}

func newSleepWorld(t *testing.T) *sleepWorld {
	_, p := points(t)
	both, err := critest.OpenPair(t.Context(), harness.Options{Release: harness.Newest, Programs: p.programs, Log: t.Logf},
		podImages...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := both[0].Close(); err != nil {
			t.Error(err)
		}
	})
	w := &sleepWorld{}
	for i, g := range both {
		n := &podWorld{Ground: g, pointed: p, dir: t.TempDir()}
		if err := n.forget(n.Node); err != nil {
			t.Fatal(err)
		}
		if _, err := n.crictl(t.Context(), "pull", podImages[0]); err != nil {
			t.Fatal(err)
		}
		if n.empty, err = n.Inventory(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.nodes[i] = n
	}
	return w
}

func (w *sleepWorld) here() *podWorld { return w.nodes[w.at] }

// sleepers are the containers of the pod, and what they run.
var sleepers = [][2]string{{"setup", "exit 3"}, {"count", counting}, {"reader", "sleep 100000"}}

// make makes the pod on a node, container by container. There the VM boots, or wakes.
func (w *sleepWorld) make(ctx context.Context, at int) error {
	n := w.nodes[at]
	n.serial++
	config, err := n.file("pod", map[string]any{
		"metadata": map[string]any{"name": "sleeper", "namespace": "team", "uid": "u" + strconv.Itoa(n.serial) + n.Name,
			"attempt": n.serial},
		"linux": map[string]any{}, "annotations": map[string]any{"godwit.dev/vm": "sleeper"},
	})
	if err != nil {
		return err
	}
	if n.pod, err = n.crictl(ctx, "runp", "--runtime", "godwit", config); err != nil {
		return err
	}
	for _, c := range sleepers {
		if w.readers[at], err = n.script(ctx, c[0], c[1]); err != nil {
			return err
		}
	}
	if w.sidecar != "" {
		_, err = n.script(ctx, "sidecar", w.sidecar)
	}
	return err
}

// retry goes on with a pod whose making has failed, as a kubelet does: it keeps what runs, makes a container anew that
// was not started, and removes a pod that has failed, which its controller makes again.
func (w *sleepWorld) retry(ctx context.Context) error {
	return harness.Poll(ctx, 2*settleBound, func(ctx context.Context) (err error) {
		n := w.here()
		if n.pod, err = n.crictl(ctx, "pods", "-q", "--name", "sleeper", "--state", "ready"); err != nil {
			return err
		}
		failed := n.pod == ""
		for _, c := range sleepers {
			if !failed {
				failed, err = w.retryOne(ctx, c[0], c[1])
			}
			if err != nil {
				return fmt.Errorf("go on with container %s: %w", c[0], err)
			}
		}
		if !failed {
			return nil
		}
		return errors.Join(w.drop(ctx), w.make(ctx, w.at))
	})
}

// retryOne is retry of a container. It reports whether the container has ended, and with it the pod.
func (w *sleepWorld) retryOne(ctx context.Context, name, script string) (ended bool, err error) {
	n := w.here()
	id, err := n.crictl(ctx, "ps", "-a", "-q", "--latest", "--pod", n.pod, "--name", "^"+name+"$")
	if err != nil {
		return false, err
	}
	state := ""
	if id != "" {
		if state, err = n.state(ctx, id); err != nil {
			return false, err
		}
	}
	switch state {
	case "CONTAINER_RUNNING":
	case "CONTAINER_EXITED":
		ended = name != "setup"
	case "CONTAINER_UNKNOWN":
		if _, err = n.crictl(ctx, "stop", id); err != nil {
			return false, err
		}
		fallthrough
	default:
		id, err = n.script(ctx, name, script)
	}
	w.readers[w.at] = id
	return ended, err
}

// script makes a container that runs a script, and starts it.
func (w *podWorld) script(ctx context.Context, name, script string) (id string, err error) {
	w.serial++
	config, err := w.file("c", map[string]any{
		"metadata": map[string]any{"name": name, "attempt": w.serial}, "image": map[string]any{"image": podImages[0]},
		"command": []string{"/bin/sh", "-c", script}, "linux": map[string]any{},
	})
	if err == nil {
		id, err = w.crictl(ctx, "create", "--no-pull", w.pod, config, filepath.Join(w.dir, "pod.json"))
	}
	if err == nil {
		_, err = w.crictl(ctx, "start", id)
	}
	return id, err
}

// hibernate orders it, on the node that has the pod.
func (w *sleepWorld) hibernate(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callBound)
	defer cancel()
	_, err := w.here().RunGodwit(ctx, "-n", "k8s.io", "hibernate", "--end-execs", sleepingVM)
	return errors.Join(err, ctx.Err())
}

// counts waits until the pod counts on, and wants it to be the run that is known.
func (w *sleepWorld) counts(ctx context.Context) error {
	return harness.Poll(ctx, settleBound, w.countsNow)
}

func (w *sleepWorld) countsNow(ctx context.Context) error {
	out, err := w.here().crictl(ctx, "exec", "-s", w.readers[w.at], "cat", "/dev/shm/count")
	if err != nil {
		return err
	}
	nonce, text, _ := strings.Cut(out, " ")
	count, err := strconv.Atoi(text)
	switch {
	case err != nil:
		return fmt.Errorf("the pod counts %q: %w", out, err)
	case w.nonce == "":
		w.nonce = nonce
	case nonce != w.nonce || count < w.count:
		return fmt.Errorf("run %s had counted to %d, and run %s counts %d", w.nonce, w.count, nonce, count)
	}
	w.count = count
	return nil
}

// vmms of both nodes.
func (w *sleepWorld) vmms() (all []int, err error) {
	for _, n := range w.nodes {
		some, e := n.VMMs()
		all, err = append(all, some...), errors.Join(err, e)
	}
	return all, err
}

// settled waits until no operation is open, and answers whose the VM is then; nil: there is no record.
func (w *sleepWorld) settled(ctx context.Context) (owner *nodev1.Owner, err error) {
	err = harness.Poll(ctx, 2*settleBound, func(ctx context.Context) error {
		conn, err := net.Dial("unix", filepath.Join(w.nodes[0].Dir, "run", "godwitd.sock"))
		if err != nil {
			return err
		}
		client := ttrpc.NewClient(conn)
		defer client.Close()
		all, err := nodev1.NewNodeClient(client).VMs(ctx, &nodev1.VMsRequest{Namespace: "k8s.io"})
		if err != nil {
			return err
		}
		owner = nil
		for _, info := range all.GetVms() {
			op := info.GetOperation()
			switch {
			case info.GetVm().GetId() != sleepingVM:
			case op != nil:
				return fmt.Errorf("operation %s is still open, in %s: %s", op.GetId(), op.GetPhase(), op.GetReason())
			default:
				owner = info.GetOwner()
			}
		}
		return nil
	})
	return owner, err
}

// drop removes what CRI of both nodes has of the pod.
func (w *sleepWorld) drop(ctx context.Context) (err error) {
	for _, n := range w.nodes {
		err = errors.Join(err, n.remove(ctx))
	}
	return err
}
