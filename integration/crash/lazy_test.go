//go:build integration

package crash

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"godwit.dev/godwit/integration/harness"
)

// lazyWakes are the points of a wake whose RAM comes while the VM runs, up to the end of that. At each
// of them, but for those that say otherwise, RAM is still to come.
func lazyWakes() []scene {
	return []scene{
		{"wake", "while packs are pulled", (*act).pulling, map[victim]outcome{
			shimProcess: sleeps, worker: runs, daemon: kept, containerds: kept, controller: runs}},
		{"wake", "ready", (*act).ready, map[victim]outcome{
			shimProcess: sleeps, daemon: runs, containerds: kept}},
		{"wake", "loaded", comingAt((*act).loaded), map[victim]outcome{
			shimProcess: sleeps, vmmProcess: sleeps, worker: runs, daemon: kept, containerds: kept}},
		{"wake", "committed", comingAt((*act).owned), map[victim]outcome{
			shimProcess: sleeps, vmmProcess: sleeps, worker: runs, daemon: runs, containerds: runs, controller: runs}},
		{"wake", "not thawed", comingAt((*act).thawing), map[victim]outcome{
			shimProcess: runs, worker: runs, daemon: runs, containerds: runs}},
		{"wake", "waits before it is met", (*act).parched, map[victim]outcome{
			shimProcess: runs, vmmProcess: lost, worker: runs, daemon: runs, containerds: runs, taskKilled: lost,
			taskRemoved: lost}},
		{"wake", "RAM comes", (*act).comes, map[victim]outcome{
			shimProcess: lost, vmmProcess: lost, worker: runs, daemon: runs, containerds: runs, controller: runs,
			taskKilled: lost}},
		{"wake", "waits", (*act).waits, map[victim]outcome{
			shimProcess: lost, vmmProcess: lost, worker: runs, daemon: runs, containerds: runs, taskKilled: lost,
			taskRemoved: lost}},
		{"wake", "end of the fill", ending((*act).comes), map[victim]outcome{
			shimProcess: lost, vmmProcess: lost, worker: runs}},
		{"wake", "RAM is whole", (*act).filled, map[victim]outcome{
			shimProcess: lost, vmmProcess: lost}},
		{"wake", "RAM comes by a successor", (*act).succeeded, map[victim]outcome{
			shimProcess: runs, vmmProcess: lost, worker: runs, daemon: runs}},
		{"wake", "end of a successor's fill", ending((*act).succeeded), map[victim]outcome{
			shimProcess: runs}},
	}
}

// TestCrashLazy is the matrix of a lazy wake (docs/concepts/restore.md): what dies while RAM comes costs no more than
// in an eager one, and what the guest remembers is what it was. The snapshot of a VM that has ended is whole and wakes
// again.
func TestCrashLazy(t *testing.T) {
	if harness.VMM() != "qemu" {
		t.Skip("QEMU alone waits for RAM")
	}
	selection := []string{"wake/waits before it is met/shim"}
	if harness.KVM() { // where the kernel may wait for pages in a worker of its own, while the VMM dies
		selection = append(selection, "wake/RAM comes/shim", "wake/waits/shim", "wake/waits/vmm", "wake/waits/worker",
			"wake/waits/task rm -f", "wake/end of the fill/shim")
	}
	playAll(t, newLazyWorld, lazyWakes(), selection)
}

// comingAt is a point at which RAM is still to come.
func comingAt(reach func(*act, context.Context) error) func(*act, context.Context) error {
	return func(a *act, ctx context.Context) error { return errors.Join(reach(a, ctx), a.coming()) }
}

// coming wants RAM to be still to come, and notes from where.
func (a *act) coming() error {
	j := note(a.b, a.vm)
	if j.Filling == nil {
		return fmt.Errorf("no RAM is to come: the journal says %+v", j)
	}
	a.lazy.from = j.Filling.Digest
	return nil
}

// comes: the wake is over, the VM runs, and no other program's word is needed.
func (a *act) comes(ctx context.Context) error {
	begun := time.Now()
	a.gate(func(*http.Request) bool { return false })
	if err := a.begin(ctx); err != nil {
		return err
	}
	if _, err := a.settled(ctx); err != nil {
		return err
	}
	return errors.Join(a.same(ctx, begun), a.coming())
}

// waits: the VM runs, and wants a page that does not come.
func (a *act) waits(ctx context.Context) error {
	if err := a.comes(ctx); err != nil {
		return err
	}
	a.dam.dry.Store(true)
	read := make(chan struct{})
	a.holds = append(a.holds, func() { <-read })
	go func() {
		defer close(read)
		ctx, cancel := context.WithTimeout(ctx, callBound)
		defer cancel()
		_, _ = a.lazy.look(ctx, a.world) // its VM may well be killed
	}()
	return a.dam.waited(ctx)
}

// parched: the VM was let run, and wants a page that does not come before the shim has met it.
func (a *act) parched(ctx context.Context) error {
	if err := a.thawing(ctx); err != nil {
		return err
	}
	a.dam.dry.Store(true)
	a.flow()
	if err := a.dam.waited(ctx); err != nil {
		return err
	}
	if j := note(a.b, a.vm); !j.Waking {
		return fmt.Errorf("the wake is over: the journal says %+v", j)
	}
	return a.coming()
}

// ending is a point at which RAM came, up to where all pages are there. The VMM, which would be paused to end the wait
// for them, is stopped.
func ending(reach func(*act, context.Context) error) func(*act, context.Context) error {
	return func(a *act, ctx context.Context) error {
		if err := reach(a, ctx); err != nil {
			return err
		}
		return a.halfWhole(ctx)
	}
}

func (a *act) halfWhole(ctx context.Context) error {
	pid, err := a.vmm()
	if err != nil {
		return err
	}
	if _, err := a.stop(ctx, pid); err != nil {
		return err
	}
	a.dam.open()
	return harness.Poll(ctx, runBound, func(context.Context) error {
		if j := note(a.b, a.vm); j.Filling == nil || j.Armed {
			return fmt.Errorf("the journal says %+v", j)
		}
		return nil
	})
}

// filled: RAM has just become whole.
func (a *act) filled(ctx context.Context) error {
	if err := a.comes(ctx); err != nil {
		return err
	}
	a.dam.open()
	return harness.Poll(ctx, runBound, func(context.Context) error { return whole(a.world) })
}

// succeeded: the shim of the wake has died, and another one has taken it to its end.
func (a *act) succeeded(ctx context.Context) error {
	if err := a.thawing(ctx); err != nil {
		return err
	}
	follow := a.dam.follower(a, shimProcess, runs)
	begun := time.Now()
	if err := a.kill(ctx, shimProcess); err != nil {
		return err
	}
	a.flow()
	if err := follow(ctx); err != nil {
		return err
	}
	err := harness.Poll(ctx, runBound, func(context.Context) error {
		if j := note(a.b, a.vm); j.Phase != "OWN" || j.Waking {
			return fmt.Errorf("the journal says %+v", j)
		}
		return nil
	})
	return errors.Join(err, a.same(ctx, begun), a.coming())
}
