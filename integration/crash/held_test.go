//go:build integration

package crash

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"

	"godwit.dev/godwit/api/config"
	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/migrate/tasks"
)

// operationRun is one operation, brought to a named point and held there by what surrounds it:
// a registry that does not answer, a process that is stopped. No program knows of it.
type operationRun struct {
	*world
	kind, id string
	flags    []string  // of the order
	holds    []func()  // what lets everything go on
	daemon   func()    // lets b's godwitd go on, where a point has stopped it
	thaw     func()    // lets the shim go on, where a point has stopped it
	flow     func()    // lets the VMM go on, where a point has stopped it
	packs    *packGate // holds up the RAM of a lazy wake; nil: there is none
}

func (w *world) order(kind string) *operationRun {
	w.orders++
	a := &operationRun{world: w, kind: kind, id: fmt.Sprintf("%s-%d", kind, w.orders)}
	if w.lazy != nil && kind == "wake" {
		a.packs = newPackGate(w)
		a.holds = append(a.holds, a.packs.open)
	}
	return a
}

// begin orders the operation and returns once it is durable.
func (a *operationRun) begin(ctx context.Context) error {
	return a.godwit(ctx, append(append([]string{a.kind}, a.flags...), "--detach", "--operation", a.id, a.vm)...)
}

// release ends every hold. It may be called twice.
func (a *operationRun) release() {
	for _, f := range a.holds {
		f()
	}
	a.Door.SetFault(nil)
}

// gate holds all requests that match, from the first one on.
func (a *operationRun) gate(match func(*http.Request) bool) (reached <-chan struct{}, open func()) {
	first, opened := make(chan struct{}), make(chan struct{})
	once := sync.OnceFunc(func() { close(first) })
	a.Door.SetFault(func(_ int, r *http.Request) harness.Fault {
		if match(r) {
			once()
			<-opened
		}
		a.packs.hold(r)
		return harness.Fault{}
	})
	open = sync.OnceFunc(func() { close(opened) })
	a.holds = append(a.holds, open)
	return first, open
}

// heldAt begins the operation and waits until the registry is asked for what matches.
func (a *operationRun) heldAt(ctx context.Context, match func(*http.Request) bool) (open func(), err error) {
	reached, open := a.gate(match)
	if err := a.begin(ctx); err != nil {
		return nil, err
	}
	select {
	case <-reached:
		return open, nil
	case <-time.After(runBound):
		info, _ := a.record(ctx)
		return nil, fmt.Errorf("the operation did not get to the registry: %v", info.GetOperation())
	}
}

// stop holds a process until release, or until the answer is called.
func (a *operationRun) stop(ctx context.Context, pid int) (resume func(), err error) {
	resume, err = stop(ctx, pid)
	if resume != nil {
		a.holds = append(a.holds, resume)
	}
	return resume, err
}

func (a *operationRun) shim() (int, error) { return hostPID(a.b, note(a.b, a.vm).Shim.PID) }
func (a *operationRun) vmm() (int, error)  { return hostPID(a.b, note(a.b, a.vm).Process.PID) }

func writes(r *http.Request, path string) bool {
	return slices.Contains([]string{http.MethodPost, http.MethodPut, http.MethodPatch}, r.Method) &&
		strings.Contains(r.URL.Path, path)
}

// precopying: the first pack goes while the VM runs.
func (a *operationRun) precopying(ctx context.Context) error {
	_, err := a.heldAt(ctx, a.sends)
	return err
}

// sends matches a blob of the worker's; before it godwitd tries the registry, and the
// worker tries it with an empty one.
func (a *operationRun) sends(r *http.Request) bool {
	return carries(r) && note(a.b, a.vm).Phase == "SENDING"
}

// carries matches a blob that is not an empty one.
func carries(r *http.Request) bool {
	return r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/blobs/") && r.ContentLength > 2
}

// pushing: without passes before the pause the first pack goes in it.
func (a *operationRun) pushing(ctx context.Context) error {
	a.flags = []string{"--pause-budget", "0"}
	_, err := a.heldAt(ctx, a.sends)
	return err
}

func (a *operationRun) naming(ctx context.Context) error {
	_, err := a.heldAt(ctx, func(r *http.Request) bool { return writes(r, "/manifests/") })
	return err
}

// afterManifest matches the worker's own look at the manifest that it has written.
func afterManifest() func(*http.Request) bool {
	var named atomic.Bool
	return func(r *http.Request) bool {
		if writes(r, "/manifests/") {
			named.Store(true)
		}
		return named.Load() && r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/manifests/")
	}
}

func (a *operationRun) pushed(ctx context.Context) error {
	_, err := a.heldAt(ctx, afterManifest())
	return err
}

// voted: a frozen VMM holds up the vote until the daemon, which would commit next, is
// stopped.
func (a *operationRun) voted(ctx context.Context) error {
	open, err := a.heldAt(ctx, afterManifest())
	if err != nil {
		return err
	}
	pid, err := a.vmm()
	if err != nil {
		return err
	}
	thaw, err := freeze(pid)
	if err != nil {
		return err
	}
	open()
	// The phase comes before the order to vote: the shim must have heard it.
	if err = errors.Join(a.phase(ctx, nodev1.Phase_PHASE_SWITCHING), a.awaitState(ctx, "voting")); err == nil {
		a.daemon, err = a.stop(ctx, a.b.Godwitd.PID())
	}
	if terr := thaw(); err == nil {
		err = terr
	}
	if err != nil {
		return err
	}
	if err := a.journaled(ctx, "PREPARED"); err != nil {
		return err
	}
	shim, err := a.shim()
	if err != nil {
		return err
	}
	return said(ctx, shim, machineSocket) // the vote, to who asked for it
}

// awaitState waits until the VM is in that state, as its shim says.
func (a *operationRun) awaitState(ctx context.Context, state string) error {
	cfg, err := config.Load(a.b.Config)
	if err != nil {
		return err
	}
	return harness.Poll(ctx, stepBound, func(ctx context.Context) error {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", cfg.MachineSocket("default", a.vm))
		if err != nil {
			return err
		}
		client := ttrpc.NewClient(conn)
		defer client.Close()
		q, err := machinev1.NewMachineClient(client).Query(ctx, &machinev1.QueryRequest{})
		if err == nil && q.GetState() != state {
			err = fmt.Errorf("the VM is %s, not %s", q.GetState(), state)
		}
		return err
	})
}

// committed: the shim, which has voted, hears nothing of the commit.
func (a *operationRun) committed(ctx context.Context) error {
	if err := a.voted(ctx); err != nil {
		return err
	}
	return a.commitWithout(ctx)
}

// commitWithout stops the shim, which has said all it has to say, and lets the daemon go on
// to the commit.
func (a *operationRun) commitWithout(ctx context.Context) error {
	pid, err := a.shim()
	if err != nil {
		return err
	}
	if a.thaw, err = a.stop(ctx, pid); err != nil {
		return err
	}
	a.daemon()
	return a.phase(ctx, nodev1.Phase_PHASE_COMMITTED)
}

// cleaning: containerd does not answer the daemon, which wants the stopped task gone. It answers until the container
// is marked: that comes before the release, so that the restart monitor looks at no VM whose task has ended because
// it sleeps. The shim, which the daemon asks before it marks, answers; a frozen VMM holds up the release.
func (a *operationRun) cleaning(ctx context.Context) error {
	if err := a.committed(ctx); err != nil {
		return err
	}
	pid, err := a.vmm()
	if err != nil {
		return err
	}
	thaw, err := freeze(pid)
	if err != nil {
		return err
	}
	a.thaw()
	if err = errors.Join(a.marked(ctx), a.awaitState(ctx, "releasing")); err == nil {
		_, err = a.stop(ctx, a.b.Containerd.PID())
	}
	if err = errors.Join(err, thaw()); err != nil {
		return err
	}
	return a.phase(ctx, nodev1.Phase_PHASE_CLEANING)
}

// marked waits until the container says which snapshot owns its VM.
func (a *operationRun) marked(ctx context.Context) error {
	client, err := containerd.New(a.b.Socket, containerd.WithDefaultNamespace("default"))
	if err != nil {
		return err
	}
	defer client.Close()
	return harness.Poll(ctx, stepBound, func(ctx context.Context) error {
		container, err := client.LoadContainer(ctx, a.vm)
		if err != nil {
			return err
		}
		labels, err := container.Labels(ctx)
		if err == nil && labels[tasks.LabelDigest] == "" {
			err = fmt.Errorf("container %s has no label %s", a.vm, tasks.LabelDigest)
		}
		return err
	})
}

func (a *operationRun) incoming(r *http.Request) bool {
	return r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") && note(a.b, a.vm).Phase == "INCOMING"
}

func (a *operationRun) pulling(ctx context.Context) error {
	_, err := a.heldAt(ctx, a.incoming)
	return err
}

// ready: the task is created, and the daemon, which would start it, is stopped.
func (a *operationRun) ready(ctx context.Context) error {
	open, err := a.heldAt(ctx, a.incoming)
	if err != nil {
		return err
	}
	if a.daemon, err = a.stop(ctx, a.b.Godwitd.PID()); err != nil {
		return err
	}
	open()
	if err := a.journaled(ctx, "READY"); err != nil {
		return err
	}
	return harness.Poll(ctx, stepBound, func(ctx context.Context) error {
		out, err := a.b.RunCtr(ctx, "tasks", "ls")
		if err == nil && !strings.Contains(out, "CREATED") {
			err = fmt.Errorf("the task is not created: %s", out)
		}
		return err
	})
}

// loaded: the task is started by hand, and its shim waits for the daemon's word.
func (a *operationRun) loaded(ctx context.Context) error {
	if err := a.ready(ctx); err != nil {
		return err
	}
	client, err := containerd.New(a.b.Socket)
	if err != nil {
		return err
	}
	inNamespace := namespaces.WithNamespace(ctx, "default")
	container, err := client.LoadContainer(inNamespace, a.vm)
	if err != nil {
		return errors.Join(err, client.Close())
	}
	task, err := container.Task(inNamespace, nil)
	if err != nil {
		return errors.Join(err, client.Close())
	}
	seen, stop := context.WithCancel(inNamespace)
	defer stop()
	go func() { // its answer is not waited for: the point lies before it
		defer client.Close()
		for errdefs.IsFailedPrecondition(task.Start(inNamespace)) && seen.Err() == nil {
			time.Sleep(10 * time.Millisecond) // containerd lists the task while it is being created
		}
	}()
	err = harness.Poll(ctx, runBound, func(context.Context) error { _, err := a.vmm(); return err })
	if err != nil {
		return err
	}
	pid, err := a.shim()
	if err != nil {
		return err
	}
	return said(ctx, pid, daemonSocket) // it asks for the commit
}

// owned: the record says that the VM is b's, and the shim does not know it yet.
func (a *operationRun) owned(ctx context.Context) error {
	if err := a.loaded(ctx); err != nil {
		return err
	}
	return a.commitWithout(ctx)
}

// resuming: the VM is b's, and its VMM, which would let it run, is stopped.
func (a *operationRun) resuming(ctx context.Context) error {
	if err := a.loaded(ctx); err != nil {
		return err
	}
	pid, err := a.vmm()
	if err != nil {
		return err
	}
	if a.flow, err = a.stop(ctx, pid); err != nil {
		return err
	}
	a.daemon()
	return a.journaled(ctx, "OWN")
}

// running: the VM is heard, and containerd does not tell the daemon that it runs.
func (a *operationRun) running(ctx context.Context) error {
	if err := a.loaded(ctx); err != nil {
		return err
	}
	begun := time.Now()
	if _, err := a.stop(ctx, a.b.Containerd.PID()); err != nil {
		return err
	}
	a.daemon()
	if err := a.same(ctx, begun); err != nil {
		return err
	}
	// Until its Start has come to an end, a successor takes the wake there.
	err := harness.Poll(ctx, stepBound, func(context.Context) error {
		if j := note(a.b, a.vm); j.Phase != "OWN" || j.Waking {
			return fmt.Errorf("the journal says %+v", j)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return a.phase(ctx, nodev1.Phase_PHASE_COMMITTED)
}
