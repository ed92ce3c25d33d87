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
		{"wake", "while packs are pulled", (*operationRun).pulling, map[victim]outcome{
			shimProcess: sleeps, worker: runs, daemon: kept, containerds: kept, controller: runs}},
		{"wake", "ready", (*operationRun).ready, map[victim]outcome{
			shimProcess: sleeps, daemon: runs, containerds: kept}},
		{"wake", "loaded", comingAt((*operationRun).loaded), map[victim]outcome{
			shimProcess: sleeps, vmmProcess: sleeps, worker: runs, daemon: kept, containerds: kept}},
		{"wake", "committed", comingAt((*operationRun).owned), map[victim]outcome{
			shimProcess: sleeps, vmmProcess: sleeps, worker: runs, daemon: runs, containerds: runs, controller: runs}},
		{"wake", "not thawed", comingAt((*operationRun).resuming), map[victim]outcome{
			shimProcess: runs, worker: runs, daemon: runs, containerds: runs}},
		{"wake", "waits before it is met", (*operationRun).missingPage, map[victim]outcome{
			shimProcess: runs, vmmProcess: lost, worker: runs, daemon: runs, containerds: runs, taskKilled: lost,
			taskRemoved: lost}},
		{"wake", "RAM comes", (*operationRun).fillsAndRuns, map[victim]outcome{
			shimProcess: lost, vmmProcess: lost, worker: runs, daemon: runs, containerds: runs, controller: runs,
			taskKilled: lost}},
		{"wake", "waits", (*operationRun).waitsForPage, map[victim]outcome{
			shimProcess: lost, vmmProcess: lost, worker: runs, daemon: runs, containerds: runs, taskKilled: lost,
			taskRemoved: lost}},
		{"wake", "end of the fill", ending((*operationRun).fillsAndRuns), map[victim]outcome{
			shimProcess: lost, vmmProcess: lost, worker: runs}},
		{"wake", "RAM is whole", (*operationRun).filled, map[victim]outcome{
			shimProcess: lost, vmmProcess: lost}},
		{"wake", "RAM comes by a successor", (*operationRun).succeeded, map[victim]outcome{
			shimProcess: runs, vmmProcess: lost, worker: runs, daemon: runs}},
		{"wake", "end of a successor's fill", ending((*operationRun).succeeded), map[victim]outcome{
			shimProcess: runs}},
	}
}

// TestCrashLazy is the matrix of a lazy wake (docs/concepts/restore.md): what dies while RAM comes costs no more than
// in an eager one, and what the guest remembers is what it was. The snapshot of a VM that has ended is whole and wakes
// again.
func TestCrashLazy(t *testing.T) {
	selection := []string{"wake/waits before it is met/shim"}
	if harness.KVM() { // where the kernel may wait for pages in a worker of its own, while the VMM dies
		selection = append(selection, "wake/RAM comes/shim", "wake/waits/shim", "wake/waits/vmm", "wake/waits/worker",
			"wake/waits/task rm -f", "wake/end of the fill/shim")
	}
	playAll(t, newLazyWorld, lazyWakes(), selection)
}

// comingAt is a point at which RAM is still to come.
func comingAt(reach func(*operationRun, context.Context) error) func(*operationRun, context.Context) error {
	return func(a *operationRun, ctx context.Context) error { return errors.Join(reach(a, ctx), a.fillPending()) }
}

// fillPending wants RAM to be still to come, and notes from where.
func (a *operationRun) fillPending() error {
	j := note(a.b, a.vm)
	if j.Filling == nil {
		return fmt.Errorf("no RAM is to come: the journal says %+v", j)
	}
	a.lazy.from = j.Filling.Digest
	return nil
}

// fillsAndRuns: the wake is over, the VM runs, and no other program's word is needed.
func (a *operationRun) fillsAndRuns(ctx context.Context) error {
	begun := time.Now()
	a.gate(func(*http.Request) bool { return false })
	if err := a.begin(ctx); err != nil {
		return err
	}
	if _, err := a.settled(ctx); err != nil {
		return err
	}
	return errors.Join(a.same(ctx, begun), a.fillPending())
}

// waitsForPage: the VM runs, and wants a page that does not come.
func (a *operationRun) waitsForPage(ctx context.Context) error {
	if err := a.fillsAndRuns(ctx); err != nil {
		return err
	}
	a.packs.dry.Store(true)
	read := make(chan struct{})
	a.holds = append(a.holds, func() { <-read })
	go func() {
		defer close(read)
		ctx, cancel := context.WithTimeout(ctx, callBound)
		defer cancel()
		_, _ = a.lazy.look(ctx, a.world) // its VM may well be killed
	}()
	return a.packs.waited(ctx)
}

// missingPage: the VM was let run, and wants a page that does not come before the shim has met it.
func (a *operationRun) missingPage(ctx context.Context) error {
	if err := a.resuming(ctx); err != nil {
		return err
	}
	a.packs.dry.Store(true)
	a.flow()
	if err := a.packs.waited(ctx); err != nil {
		return err
	}
	if j := note(a.b, a.vm); !j.Waking {
		return fmt.Errorf("the wake is over: the journal says %+v", j)
	}
	return a.fillPending()
}

// ending is a point at which RAM came, up to where all pages are there. The VMM, which would be paused to end the wait
// for them, is stopped.
func ending(reach func(*operationRun, context.Context) error) func(*operationRun, context.Context) error {
	return func(a *operationRun, ctx context.Context) error {
		if err := reach(a, ctx); err != nil {
			return err
		}
		return a.halfWhole(ctx)
	}
}

func (a *operationRun) halfWhole(ctx context.Context) error {
	pid, err := a.vmm()
	if err != nil {
		return err
	}
	if _, err := a.stop(ctx, pid); err != nil {
		return err
	}
	a.packs.open()
	return harness.Poll(ctx, runBound, func(context.Context) error {
		if j := note(a.b, a.vm); j.Filling == nil || j.Armed {
			return fmt.Errorf("the journal says %+v", j)
		}
		return nil
	})
}

// filled: RAM has just become whole.
func (a *operationRun) filled(ctx context.Context) error {
	if err := a.fillsAndRuns(ctx); err != nil {
		return err
	}
	a.packs.open()
	return harness.Poll(ctx, runBound, func(context.Context) error { return whole(a.world) })
}

// succeeded: the shim of the wake has died, and another one has taken it to its end.
func (a *operationRun) succeeded(ctx context.Context) error {
	if err := a.resuming(ctx); err != nil {
		return err
	}
	follow := a.packs.follower(a, shimProcess, runs)
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
	return errors.Join(err, a.same(ctx, begun), a.fillPending())
}
