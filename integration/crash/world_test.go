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

	"github.com/containerd/ttrpc"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

const (
	runtimeName = "io.containerd.godwit.v1"
	beaconPort  = "9999"
	quiet       = time.Second // a VM that sleeps is not heard for so long
)

var (
	runBound    = harness.Slow(time.Minute)      // from a boot or a wake to the first beacon
	settleBound = harness.Slow(time.Minute)      // from the restart of what was killed to no open operation
	callBound   = harness.Slow(90 * time.Second) // one command that nothing disturbs
	stepBound   = harness.Slow(20 * time.Second) // one step of an operation
	stopBound   = harness.Slow(10 * time.Second) // a process does as it is told
)

// world is two nodes: a keeps the records and is asked, b has the VM and is hurt.
type world struct {
	*harness.Harness
	a, b   *harness.Node
	watch  *watcher
	vm     string
	empty  harness.Inventory // of b before the first VM
	flags  []string          // of ctr run
	nonce  string            // of the VM that is there; empty: none
	orders int
	lazy   *lazyWakeWorld // b wakes VMs so; nil: eagerly
}

// uncached: the points of a wake lie between its requests to the registry.
func uncached(*harness.Node) string { return "cache.packs = 0\n" }

// patient has the shims of a node wait for its daemon, which many points stop, for longer
// than anything here takes.
func patient(n *harness.Node) error {
	dir := filepath.Join(filepath.Dir(n.Config), "config.d")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "patient.toml"), []byte("[timeouts]\ndaemon = \"1h\"\n"), 0o600)
}

func newWorld(t *testing.T) *world { return makeWorld(t, uncached) }

// makeWorld takes what stands in the configuration of each node besides.
func makeWorld(t *testing.T, config func(*harness.Node) string) *world {
	h := harness.New(t, harness.Options{Nodes: 2, Registry: harness.PlainHTTP, Godwitd: true, Images: true,
		Config: config})
	w := &world{Harness: h, a: h.Node(0), b: h.Node(1), vm: filepath.Base(h.Dir)}
	if err := patient(w.b); err != nil {
		t.Fatal(err)
	}
	tar := filepath.Join(h.Dir, "probe.tar")
	w.a.Ctr(t, "images", "export", "--local", tar, images.Probe)
	if err := w.b.Import(t.Context(), tar, ""); err != nil {
		t.Fatal(err)
	}
	conn, err := h.ListenPacket(net.JoinHostPort(harness.Gateway, beaconPort))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	w.watch = watch(conn)
	if w.empty, err = w.b.Inventory(t.Context()); err != nil {
		t.Fatal(err)
	}
	return w
}

// awake makes sure that the VM runs on b, in a network that a wake has made: the lease
// of ctr's own is lost when its task is, with every runtime.
func (w *world) awake(ctx context.Context) error {
	if w.nonce != "" {
		return nil
	}
	begun := time.Now()
	beacon := net.JoinHostPort(harness.Gateway, beaconPort)
	run := append([]string{"run", "-d", "--cni", "--runtime", runtimeName}, w.flags...)
	if err := w.ctr(ctx, append(run, images.Probe, w.vm, "/bin/probe", "-beacon", beacon)...); err != nil {
		return err
	}
	s, err := w.watch.next(ctx, begun)
	if err != nil {
		return err
	}
	w.nonce = s.Nonce
	if err := w.lazy.fill(ctx, w); err != nil {
		return err
	}
	if err := w.hibernate(ctx); err != nil {
		return err
	}
	return w.wake(ctx)
}

// hibernate puts the VM to sleep, undisturbed, and looks what it left on the node. Execs whose
// client died with containerd run on, and would be in the way.
func (w *world) hibernate(ctx context.Context) error {
	if err := w.godwit(ctx, "hibernate", "--end-execs", w.vm); err != nil {
		return err
	}
	if err := w.silent(ctx); err != nil {
		return err
	}
	return w.clean(ctx)
}

// wake wakes the VM, undisturbed: the one that fell asleep.
func (w *world) wake(ctx context.Context) error {
	begun := time.Now()
	if err := w.godwit(ctx, "wake", "--on", "b", w.vm); err != nil {
		return err
	}
	return w.same(ctx, begun)
}

// same waits for the guest to be heard and compares it with the one that is known.
func (w *world) same(ctx context.Context, since time.Time) error {
	s, err := w.watch.next(ctx, since)
	if err == nil && s.Nonce != w.nonce {
		err = fmt.Errorf("VM %s is another one: nonce %s.., was %s..", w.vm, s.Nonce[:8], w.nonce[:8])
	}
	return err
}

// silent checks that nothing runs.
func (w *world) silent(ctx context.Context) error {
	before := w.watch.latest()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(quiet):
	}
	if now := w.watch.latest(); now.Counter != before.Counter {
		return fmt.Errorf("VM %s is heard at counter %d while it must not run", w.vm, now.Counter)
	}
	return nil
}

// delete ends what is left of a VM that was lost, as a user of containerd does.
func (w *world) delete(ctx context.Context) error {
	for _, args := range [][]string{{"task", "rm", "--force", w.vm}, {"container", "rm", w.vm}} {
		if err := w.ctr(ctx, args...); err != nil && !strings.Contains(err.Error(), "not found") {
			return err
		}
	}
	return w.clean(ctx)
}

// remove ends its record, too.
func (w *world) remove(ctx context.Context) error {
	w.nonce = ""
	if err := w.delete(ctx); err != nil {
		return err
	}
	// The record ends once the node has said that nothing is left there.
	return harness.Poll(ctx, 2*settleBound, func(ctx context.Context) error {
		return w.godwit(ctx, "rm", "--force", w.vm)
	})
}

// clean waits until b holds nothing of the VM. Cgroups of others are the host's.
func (w *world) clean(ctx context.Context) error {
	return harness.Poll(ctx, settleBound, func(ctx context.Context) error {
		now, err := w.b.Inventory(ctx)
		if err != nil {
			return err
		}
		more := slices.DeleteFunc(now.Since(w.empty), func(item string) bool {
			return strings.HasPrefix(item, "cgroup ") && filepath.Base(item) != w.vm
		})
		if dirs, _ := filepath.Glob(filepath.Join(w.b.Dir, "lib", "vms", "*", "*")); len(dirs) > 0 {
			more = append(more, dirs...)
		}
		if len(more) > 0 {
			return fmt.Errorf("node b still holds:\n  %s", strings.Join(more, "\n  "))
		}
		return nil
	})
}

// record is what the keeper of the records says of the VM.
func (w *world) record(ctx context.Context) (*nodev1.VMInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, stopBound)
	defer cancel()
	conn, err := net.Dial("unix", filepath.Join(w.a.Dir, "run", "godwitd.sock"))
	if err != nil {
		return nil, err
	}
	client := ttrpc.NewClient(conn)
	defer client.Close()
	all, err := nodev1.NewNodeClient(client).VMs(ctx, &nodev1.VMsRequest{Namespace: "default"})
	if err != nil {
		return nil, err
	}
	for _, info := range all.GetVms() {
		if info.GetVm().GetId() == w.vm {
			return info, nil
		}
	}
	return nil, fmt.Errorf("VM %s has no record: %v", w.vm, all)
}

// phase waits until the open operation is in want.
func (w *world) phase(ctx context.Context, want nodev1.Phase) error {
	return harness.Poll(ctx, stepBound, func(ctx context.Context) error {
		info, err := w.record(ctx)
		if err == nil && info.GetOperation().GetPhase() != want {
			err = fmt.Errorf("operation %s is in %s, not %s", info.GetOperation().GetId(), info.GetOperation().GetPhase(), want)
		}
		return err
	})
}

// journaled waits until b's journal is in want.
func (w *world) journaled(ctx context.Context, want string) error {
	return harness.Poll(ctx, stepBound, func(context.Context) error {
		if p := note(w.b, w.vm).Phase; p != want {
			return fmt.Errorf("the journal is in %q, not %s", p, want)
		}
		return nil
	})
}

// settled waits until no operation is open.
func (w *world) settled(ctx context.Context) (info *nodev1.VMInfo, err error) {
	err = harness.Poll(ctx, settleBound, func(ctx context.Context) error {
		if info, err = w.record(ctx); err != nil {
			return err
		}
		if op := info.GetOperation(); op != nil {
			return fmt.Errorf("operation %s is still open, in %s: %s", op.GetId(), op.GetPhase(), op.GetReason())
		}
		return nil
	})
	return info, err
}

func (w *world) ctr(ctx context.Context, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, callBound)
	defer cancel()
	_, err := w.b.RunCtr(ctx, args...)
	return err
}

func (w *world) godwit(ctx context.Context, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, callBound)
	defer cancel()
	_, err := w.b.RunGodwit(ctx, args...)
	return errors.Join(err, ctx.Err())
}

// successors answers what the shims that adopt wrote.
func (w *world) successors() error {
	files, _ := filepath.Glob(filepath.Join(w.b.Dir, "lib", "vms", "*", "*", "*.log"))
	var all []error
	for _, f := range files {
		if data, err := os.ReadFile(f); err == nil {
			all = append(all, fmt.Errorf("--- %s\n%s", f, data[max(0, len(data)-4000):]))
		}
	}
	return errors.Join(all...)
}
