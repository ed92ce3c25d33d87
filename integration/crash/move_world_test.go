//go:build integration

package crash

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"godwit.dev/godwit/api/moves"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
	"godwit.dev/godwit/integration/observer"
)

// moveWorld is a controller that has no VM, and two nodes between which one VM moves.
type moveWorld struct {
	*harness.Harness
	*pointed
	keeper   *harness.Node
	nodes    []*harness.Node // those with VMs
	records  *record.Client
	moves    *moves.Client
	watch    *watcher
	vm       string
	empty    map[*harness.Node]harness.Inventory
	nonce    string // of the VM that is there; empty: none
	orders   int
	past     []string // VMs that were
	pending  []remains
	leftHere map[*harness.Node]harness.Inventory // what a node holds of those
}

// remains of a VM that was lost at its destination: its source keeps it, until its record has been gone for a minute or
// more. Only the end of all waits for that.
type remains struct {
	n  *harness.Node
	vm string
}

// plain nodes keep no packs of a VM that has gone.
func plain(*harness.Node) string { return "cache.packs = 0\n" }

func newMoveWorld(t *testing.T) *moveWorld {
	return makeMoveWorld(t, 1, harness.Options{Nodes: 3, Registry: harness.PlainHTTP, Config: plain})
}

// makeMoveWorld takes how many nodes have no VM. The first node is the controller.
func makeMoveWorld(t *testing.T, without int, o harness.Options) *moveWorld {
	_, p := points(t)
	o.Godwitd, o.Images, o.Programs = true, true, p.programs
	h := harness.New(t, o)
	w := &moveWorld{Harness: h, pointed: p, keeper: h.Node(0), nodes: h.Nodes()[without:], vm: filepath.Base(h.Dir),
		empty: map[*harness.Node]harness.Inventory{}, leftHere: map[*harness.Node]harness.Inventory{}}
	if err := p.forget(h.Nodes()...); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(w.keeper.Dir, "run", "godwitd.sock")
	w.records, w.moves = record.Local(socket), moves.Local(socket)
	t.Cleanup(func() { w.records.Close(); w.moves.Close() })
	tar := filepath.Join(h.Dir, "probe.tar")
	w.keeper.Ctr(t, "images", "export", "--local", tar, images.Probe)
	conn, err := h.ListenPacket(net.JoinHostPort(harness.Gateway, beaconPort))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	w.watch = watch(conn)
	for _, n := range w.nodes {
		if err := n.Import(t.Context(), tar, ""); err != nil {
			t.Fatal(err)
		}
		if w.empty[n], err = n.Inventory(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func (w *moveWorld) name() *nodev1.VM { return &nodev1.VM{Namespace: "default", Id: w.vm} }

func (w *moveWorld) node(name string) *harness.Node {
	for _, n := range w.Nodes() {
		if n.Name == name {
			return n
		}
	}
	return nil
}

// awake makes sure that the VM runs, as a task that containerd knows, and answers where.
func (w *moveWorld) awake(ctx context.Context) (*harness.Node, error) {
	if w.nonce == "" {
		if err := w.boot(ctx); err != nil {
			return nil, err
		}
	}
	rec, err := w.record(ctx)
	if err != nil {
		return nil, err
	}
	n := w.node(rec.GetOwner().GetNode())
	if n == nil {
		return nil, fmt.Errorf("VM %s is nobody's: %v", w.vm, rec)
	}
	out, err := n.RunCtr(ctx, "tasks", "ls")
	if err != nil {
		return n, err
	}
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == w.vm && f[2] == "RUNNING" {
			return n, nil
		}
	}
	return w.home(ctx, n)
}

// boot makes a VM that has been on both nodes: either has a container object of it, and a
// network that a move has made. The lease of ctr's own is lost when its task is.
func (w *moveWorld) boot(ctx context.Context) error {
	n, begun := w.nodes[0], time.Now()
	beacon := net.JoinHostPort(harness.Gateway, beaconPort)
	if _, err := n.RunCtr(ctx, "run", "-d", "--cni", "--annotation", "godwit.dev/memory=96MiB", "--runtime", runtimeName,
		images.Probe, w.vm, "/bin/probe", "-beacon", beacon); err != nil {
		return err
	}
	s, err := w.watch.next(ctx, begun)
	if err != nil {
		return err
	}
	w.nonce = s.Nonce
	if n, err = w.home(ctx, n); err == nil {
		_, err = w.home(ctx, n)
	}
	return err
}

// home moves a VM that a successor of its shim has, undisturbed: then containerd has a task
// of it again.
func (w *moveWorld) home(ctx context.Context, from *harness.Node) (*harness.Node, error) {
	to := w.other(from)
	begun := time.Now()
	w.orders++
	id := fmt.Sprintf("home-%d", w.orders)
	if err := w.order(ctx, &nodev1.MigrateRequest{Operation: id, To: to.Name, Mode: "live"}); err != nil {
		return nil, err
	}
	rec, err := w.settled(ctx)
	if err != nil {
		return nil, err
	}
	if rec.GetOwner().GetNode() != to.Name {
		_, why := w.outcomeOf(ctx, id)
		return nil, fmt.Errorf("a move that nothing disturbs leaves the VM with %v: %w", rec.GetOwner(), why)
	}
	if err := w.same(ctx, begun); err != nil {
		return nil, err
	}
	return to, w.clean(ctx, from)
}

func (w *moveWorld) other(n *harness.Node) *harness.Node {
	return w.nodes[1-slices.Index(w.nodes, n)]
}

// order returns once the move is durable: its operation's id lets it be ordered again where
// the answer is lost with the controller.
func (w *moveWorld) order(ctx context.Context, req *nodev1.MigrateRequest) error {
	req.Vm = w.name()
	return harness.Poll(ctx, moveBound, func(ctx context.Context) error {
		_, err := w.moves.Migrate(ctx, req)
		return err
	})
}

func (w *moveWorld) record(ctx context.Context) (*nodev1.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, stopBound)
	defer cancel()
	return w.records.Get(ctx, &nodev1.GetRequest{Vm: w.name()})
}

// outcomeOf is what the operation says of itself at its end: how it ended, and why.
func (w *moveWorld) outcomeOf(ctx context.Context, id string) (phase nodev1.Phase, err error) {
	ctx, cancel := context.WithTimeout(ctx, stopBound)
	defer cancel()
	resp, err := w.moves.Get(ctx, &nodev1.StatusRequest{Operation: id})
	if err != nil {
		return phase, err
	}
	op := resp.GetOperation()
	return op.GetPhase(), errors.New(op.GetReason())
}

// settled waits until no operation is open.
func (w *moveWorld) settled(ctx context.Context) (rec *nodev1.Record, err error) {
	err = harness.Poll(ctx, moveBound, func(ctx context.Context) error {
		if rec, err = w.record(ctx); err != nil {
			return err
		}
		if op := rec.GetOperation(); op != nil {
			return fmt.Errorf("operation %s is still open, in %s: %s", op.GetId(), op.GetPhase(), op.GetReason())
		}
		return nil
	})
	return rec, err
}

// moveBound is from the restart of what was killed to no open operation: a node may be
// asked for 20 s, and rounds of godwitd come every 15.
var moveBound = harness.Slow(2 * time.Minute)

// same waits for the guest to be heard and compares it with the one that is known. Then it has the guest read what it
// has written to its disk.
func (w *moveWorld) same(ctx context.Context, since time.Time) error {
	s, err := w.watch.next(ctx, since)
	if err != nil {
		return err
	}
	if s.Nonce != w.nonce {
		return fmt.Errorf("VM %s is another one: nonce %s.., was %s..", w.vm, s.Nonce[:8], w.nonce[:8])
	}
	ctx, cancel := context.WithTimeout(ctx, runBound)
	defer cancel()
	state, err := observer.Ask(ctx, w.Dial, s.from)
	if err == nil && (!state.FileOK || state.Nonce != w.nonce || uint64(state.FileLines)+1 < state.Counter/10) {
		err = fmt.Errorf("the guest's memory and disk differ, or are another's: %+v", state)
	}
	return err
}

// clean waits until a node holds nothing of the VM.
func (w *moveWorld) clean(ctx context.Context, n *harness.Node) error {
	return harness.Poll(ctx, moveBound, func(ctx context.Context) error {
		now, err := n.Inventory(ctx)
		if err != nil {
			return err
		}
		more := slices.DeleteFunc(now.Since(w.empty[n]), func(item string) bool {
			return strings.HasPrefix(item, "cgroup ") && filepath.Base(item) != w.vm
		})
		for _, item := range w.leftHere[n] { // once for each time that it is there
			if i := slices.Index(more, item); i >= 0 {
				more = slices.Delete(more, i, i+1)
			}
		}
		dirs, _ := filepath.Glob(filepath.Join(n.Dir, "lib", "vms", "*", "*"))
		dirs = slices.DeleteFunc(dirs, func(dir string) bool { // until a round of godwitd's
			return note(n, filepath.Base(dir)).Phase == "FENCED" || slices.Contains(w.pending, remains{n, filepath.Base(dir)})
		})
		if more = append(more, dirs...); len(more) > 0 {
			return fmt.Errorf("node %s still holds:\n  %s", n.Name, strings.Join(more, "\n  "))
		}
		return nil
	})
}

// remove ends what is left of a VM that was lost, as a user of containerd does.
func (w *moveWorld) remove(ctx context.Context) error {
	// What a source still holds of a VM that was lost elsewhere goes with the record.
	_, _ = w.keeper.RunGodwit(ctx, "rm", "--force", w.vm)
	for _, n := range w.nodes {
		if note(n, w.vm).Phase == "PREPARED" {
			w.pending = append(w.pending, remains{n, w.vm})
			continue
		}
		if err := w.drop(ctx, n, w.vm); err != nil {
			return err
		}
	}
	for _, n := range w.nodes {
		if !slices.Contains(w.pending, remains{n, w.vm}) {
			if err := w.clean(ctx, n); err != nil {
				return err
			}
			continue
		}
		now, err := n.Inventory(ctx)
		if err != nil {
			return err
		}
		w.leftHere[n] = now.Since(w.empty[n])
	}
	w.past = append(w.past, w.vm)
	w.nonce, w.vm = "", fmt.Sprintf("%s-%d", filepath.Base(w.Dir), len(w.past))
	return nil
}

// drop removes task and container object of a VM.
func (w *moveWorld) drop(ctx context.Context, n *harness.Node, vm string) error {
	for _, args := range [][]string{{"task", "rm", "--force", vm}, {"container", "rm", vm}} {
		err := harness.Poll(ctx, moveBound, func(ctx context.Context) error {
			_, err := n.RunCtr(ctx, args...)
			if err != nil && strings.Contains(err.Error(), "not found") {
				err = nil
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// forgotten removes the records of all VMs that are gone: each ends once its node has said
// that nothing is left there, which takes it a while. Then no node holds anything.
func (w *moveWorld) forgotten(ctx context.Context) error {
	for _, r := range w.pending {
		if err := w.drop(ctx, r.n, r.vm); err != nil {
			return err
		}
	}
	for _, vm := range w.past {
		err := harness.Poll(ctx, moveBound, func(ctx context.Context) error {
			_, err := w.keeper.RunGodwit(ctx, "rm", "--force", vm)
			if err != nil && strings.Contains(err.Error(), "not found") {
				err = nil
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	w.pending = nil
	clear(w.leftHere)
	for _, n := range w.nodes {
		if err := w.clean(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// successors answers what the shims that adopt wrote.
func (w *moveWorld) successors() error {
	var all []error
	for _, n := range w.nodes {
		files, _ := filepath.Glob(filepath.Join(n.Dir, "lib", "vms", "*", "*", "*.log"))
		for _, f := range files {
			if data, err := os.ReadFile(f); err == nil {
				all = append(all, fmt.Errorf("--- %s\n%s", f, data[max(0, len(data)-4000):]))
			}
		}
	}
	return errors.Join(all...)
}
