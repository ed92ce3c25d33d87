//go:build integration

package crash

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/observer"
)

// lazyWakeWorld is what a world has besides whose b wakes VMs while their RAM comes.
type lazyWakeWorld struct {
	sum   string // of memory that no snapshot can compress, as the guest made it
	looks int
	from  string // digest of the snapshot that RAM came from last
}

func newLazyWorld(t *testing.T) *world {
	w := makeWorld(t, func(n *harness.Node) string { return uncached(n) + "[worker]\nrestore = \"lazy\"\n" })
	w.lazy = &lazyWakeWorld{}
	return w
}

const noise = "/dev/shm/noise"

// fill has the guest remember something.
func (l *lazyWakeWorld) fill(ctx context.Context, w *world) (err error) {
	if l == nil {
		return nil
	}
	if err := w.ctr(ctx, "task", "exec", "--exec-id", "noise", w.vm, "/bin/busybox", "dd", "if=/dev/urandom", "of="+noise,
		"bs=1M", "count=24"); err != nil {
		return err
	}
	l.sum, err = l.look(ctx, w)
	return err
}

// look reads it all.
func (l *lazyWakeWorld) look(ctx context.Context, w *world) (string, error) {
	l.looks++
	out, err := w.b.RunCtr(ctx, "task", "exec", "--exec-id", fmt.Sprint("look", l.looks), w.vm, "/bin/busybox",
		"sha256sum", noise)
	if err == nil && len(out) < 64 {
		err = fmt.Errorf("sum of the guest's memory: %q", out)
	}
	if err != nil {
		return "", err
	}
	return out[:64], nil
}

// intact wants memory and disk of the guest to be what they were, and its RAM to be whole soon.
func (l *lazyWakeWorld) intact(ctx context.Context, w *world) error {
	if l == nil {
		return nil
	}
	bound, cancel := context.WithTimeout(ctx, callBound)
	defer cancel()
	got, err := l.look(bound, w)
	if err == nil && got != l.sum {
		err = fmt.Errorf("the guest's memory is another: %s, was %s", got, l.sum)
	}
	if err != nil {
		return err
	}
	state, err := observer.Ask(bound, w.Dial, w.watch.latest().from)
	if err == nil && (state.Nonce != w.nonce || !state.FileOK) {
		err = fmt.Errorf("the guest is another, or its disk: %+v", state)
	}
	if err != nil {
		return err
	}
	return harness.Poll(ctx, runBound, func(context.Context) error { return whole(w) })
}

// whole wants a VM of which no RAM is to come.
func whole(w *world) error {
	if j := note(w.b, w.vm); j.Filling != nil {
		return fmt.Errorf("RAM is not whole: the journal says %+v", j)
	}
	return nil
}

// wakeAgain wakes a VM that was lost from the snapshot that it ran from, as its user does: that is whole,
// and nothing is lost but what the VM did since.
func (w *world) wakeAgain(ctx context.Context) error {
	if err := w.godwit(ctx, "snapshot", "verify", w.lazy.from); err != nil {
		return err
	}
	if err := w.delete(ctx); err != nil {
		return err
	}
	w.watch.rewind()
	begun := time.Now()
	// The record lets it go once the node has said that nothing is left there.
	err := harness.Poll(ctx, 2*settleBound, func(ctx context.Context) error {
		return w.godwit(ctx, "wake", "--on", "b", "--digest", w.lazy.from, "--force", w.vm)
	})
	return errors.Join(err, w.same(ctx, begun))
}

// packGate holds the packs that the fill of a VM that runs reads whole; what the VM waits for passes until
// it is dry.
type packGate struct {
	*world
	dry    atomic.Bool
	thirst func()
	wanted chan struct{} // closed when the VM waits for what does not come
	open   func()
	opened chan struct{}
}

func newPackGate(w *world) *packGate {
	d := &packGate{world: w, wanted: make(chan struct{}), opened: make(chan struct{})}
	d.thirst = sync.OnceFunc(func() { close(d.wanted) })
	d.open = sync.OnceFunc(func() { close(d.opened) })
	return d
}

// hold returns when a request may pass.
func (d *packGate) hold(r *http.Request) {
	if d == nil || r.Method != http.MethodGet {
		return
	}
	_, digest, _ := strings.Cut(r.URL.Path, "/blobs/")
	if !strings.HasPrefix(digest, "sha256:") || note(d.b, d.vm).Phase == "INCOMING" {
		return
	}
	part := r.Header.Get("Range") != ""
	st, err := os.Stat(d.Blob(digest))
	switch {
	case part && !d.dry.Load(), !part && (err != nil || st.Size() <= 4<<20): // no index is as large
		return
	case part:
		d.thirst()
	}
	select {
	case <-d.opened:
	case <-r.Context().Done():
	}
}

func (d *packGate) flows() bool {
	select {
	case <-d.opened:
		return true
	default:
		return false
	}
}

func (d *packGate) waited(ctx context.Context) error {
	select {
	case <-d.wanted:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(runBound):
		return errors.New("the VM wants nothing")
	}
}

// follower answers what waits for who goes on for a process that is killed, while the gate of packs holds.
func (d *packGate) follower(a *operationRun, v victim, want outcome) func(context.Context) error {
	if d == nil || want != runs || a.thaw != nil || d.flows() { // where anything is stopped it comes once all goes on
		return func(context.Context) error { return nil }
	}
	before, old := note(d.b, d.vm).Shim.PID, 0
	if v == worker {
		old, _ = workerPID(d.b)
	}
	return func(ctx context.Context) error {
		return harness.Poll(ctx, stepBound, func(context.Context) error {
			switch v {
			case shimProcess:
				if j := note(d.b, d.vm); j.Shim.PID == before {
					return fmt.Errorf("nobody has taken the VM over: the journal says %+v", j)
				}
			case worker:
				now, err := workerPID(d.b)
				if err == nil && now == old {
					err = fmt.Errorf("worker %d is still there", old)
				}
				return err
			}
			return nil
		})
	}
}

// endTask ends the VM by its user's order, while the gate of packs holds: it ends all the same.
func (a *operationRun) endTask(ctx context.Context, v victim) error {
	order := []string{"task", "rm", "--force", a.vm}
	if v == taskKilled {
		order = []string{"task", "kill", "--signal", "KILL", a.vm}
	}
	pid, err := a.vmm()
	if err != nil {
		return err
	}
	if err := a.ctr(ctx, order...); err != nil {
		return err
	}
	return harness.Poll(ctx, settleBound, func(ctx context.Context) error {
		out, err := a.b.RunCtr(ctx, "tasks", "ls")
		if err == nil && strings.Contains(out, "RUNNING") {
			err = fmt.Errorf("the task runs: %s", out)
		}
		if state, serr := state(pid); err == nil && serr == nil && state != 'Z' && state != 'X' {
			err = fmt.Errorf("its VMM, process %d, is %c", pid, state)
		}
		return err
	})
}
