//go:build integration

package k8s

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

const (
	sleeper = "sleeper" // the VM of this test
	// away is how long the API server is away in a move. The VM goes on, and so does the move afterwards.
	away = 8 * time.Second
)

// operated is a cluster of godwit whose controller is the operator, on the first node and without VMs. Its records are
// in an API server on the wire. No node has a kubelet.
type operated struct {
	*Cluster
	t *testing.T
}

func operate(t *testing.T) *operated {
	t.Helper()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	h := harness.New(t, harness.Options{Nodes: 3, Registry: harness.PlainHTTP, Godwitd: true})
	o := &operated{t: t, Cluster: cluster(h, filepath.Join(root, "bin", "tools"), Options{Operator: true})}
	for _, step := range []func(context.Context) error{o.writeKeys, o.startAPI, o.install} {
		if err := step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return o
}

func (o *operated) kubectl(args ...string) string {
	o.t.Helper()
	out, err := o.Kubectl(o.t.Context(), args...)
	if err != nil {
		o.t.Fatalf("kubectl %s: %v", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(out)
}

// start starts the operator again.
func (o *operated) start() {
	o.t.Helper()
	if err := o.StartOperator(o.t.Context()); err != nil {
		o.t.Fatal(err)
	}
}

// owner is the node that has the VM, as its record in the API server says; empty: it sleeps.
func (o *operated) owner() string {
	o.t.Helper()
	return o.kubectl("get", "vmrecords", "-o", "jsonpath={.items[*].summary.owner}")
}

// knows compares what the VM has in its memory.
func (o *operated) knows(n *harness.Node, want string) {
	o.t.Helper()
	if got := strings.TrimSpace(n.Ctr(o.t, "task", "exec", "--exec-id", fmt.Sprint("x", time.Now().UnixNano()), sleeper,
		"cat", "/dev/shm/nonce")); got != want {
		o.t.Errorf("on %s the VM knows %q, not %q", n.Name, got, want)
	}
}

// TestOperatorServes: the operator lets a VM sleep, wake on another node and move back live. It is killed and started
// again in the midst of a move, and so is the API server in another.
func TestOperatorServes(t *testing.T) {
	o := operate(t)
	b, c := o.Node(1), o.Node(2)
	if err := b.ImportStandard(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.Ctr(t, "run", "-d", "--runtime", "io.containerd.godwit.v1", images.Busybox, sleeper, "sleep", "100000")
	nonce := strings.TrimSpace(b.Ctr(t, "task", "exec", "--exec-id", "first", sleeper, "sh", "-c",
		"cat /proc/sys/kernel/random/uuid | tee /dev/shm/nonce"))
	if o.owner() != "b" {
		t.Errorf("the record says that %q has the VM", o.owner())
	}
	b.Godwit(t, "hibernate", sleeper)
	if vmms, err := b.VMMs(); err != nil || len(vmms) > 0 {
		t.Errorf("VMMs of a VM that sleeps: %v, %v", vmms, err)
	}
	c.Godwit(t, "wake", "--on", "c", sleeper)
	o.knows(c, nonce)
	if out, err := c.RunGodwit(t.Context(), "migrate", "--to", "a", sleeper); err == nil ||
		!strings.Contains(err.Error()+out, "controller without VMs") {
		t.Errorf("move to the controller: %q, %v", out, err)
	}
	o.moves(c, b, func() {
		if err := o.operator.Kill(); err != nil {
			t.Fatal(err)
		}
		o.start()
	})
	o.knows(b, nonce)
	o.moves(b, c, func() {
		if err := o.api.Kill(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(away)
		if err := o.startServer(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	o.knows(c, nonce)
	o.removed(c)
	// The operator ends soon, also while no API server answers.
	if err := errors.Join(o.api.Kill(), o.operator.Stop()); err != nil {
		t.Error(err)
	}
}

// moves moves the VM live, and lets a fault happen once the move is open. Afterwards the VM runs at the destination and
// nowhere else.
func (o *operated) moves(from, to *harness.Node, fault func()) {
	o.t.Helper()
	moved := make(chan error, 1)
	go func() {
		_, err := from.RunGodwit(o.t.Context(), "migrate", "--to", to.Name, "--mode", "live", "--bandwidth", "24MiB", sleeper)
		moved <- err
	}()
	if err := harness.Poll(o.t.Context(), time.Minute, func(context.Context) error {
		if o.kubectl("get", "vmrecords", "-o", "jsonpath={.items[*].summary.operation}") == "" {
			return fmt.Errorf("no move is open")
		}
		return nil
	}); err != nil {
		o.t.Fatal(err)
	}
	fault()
	if err := <-moved; err != nil {
		o.t.Errorf("move to %s: %v", to.Name, err)
	}
	if got := o.owner(); got != to.Name {
		o.t.Errorf("after the move the record says that %q has the VM", got)
	}
	for n, want := range map[*harness.Node]int{from: 0, to: 1} {
		if vmms, err := n.VMMs(); err != nil || len(vmms) != want {
			o.t.Errorf("after the move to %s, node %s has the VMMs %v: %v", to.Name, n.Name, vmms, err)
		}
	}
}

// removed ends the VM. Its record goes, and the nodes delete its snapshots.
func (o *operated) removed(n *harness.Node) {
	o.t.Helper()
	n.Ctr(o.t, "task", "rm", "--force", sleeper)
	n.Ctr(o.t, "container", "rm", sleeper)
	if out, err := n.RunGodwit(o.t.Context(), "rm", "-f", sleeper); err != nil && !strings.Contains(err.Error(), "no VM") {
		o.t.Errorf("%s: %v", out, err)
	}
	if err := harness.Poll(o.t.Context(), time.Minute, func(context.Context) error {
		if left := o.kubectl("get", "vmrecords", "-o", "name"); left != "" {
			return fmt.Errorf("left: %s", left)
		}
		return nil
	}); err != nil {
		o.t.Error(err)
	}
}
