package shim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/internal/retry"
	"godwit.dev/godwit/shim/cgroup"
	"godwit.dev/godwit/shim/events"
	"godwit.dev/godwit/shim/journal"
)

// adoption is the work of one process that takes over the VM of a shim that died.
type adoption struct {
	vm *VM
	j  *journal.Journal // as the shim that died has left it, and this process has taken it
}

// Adopt takes over the VM of a shim that died while an operation held it, and serves the machine service until the VM
// ends: by a release, by its own end, or by another operation. The last two need an abort that has let it run on
// without a task that containerd knows.
func Adopt(ctx context.Context, host *Host, namespace, id string) error {
	dir := host.Config.VMDir(namespace, id)
	if j, err := claimJournal(dir, checkForgotten); err == nil {
		if err := cleanUp(ctx, host, dir, j); err != nil {
			return fmt.Errorf("clean up after VM %s/%s: %w", namespace, id, err)
		}
		return nil
	}
	vm, err := adoptVM(ctx, host, namespace, id)
	if err != nil {
		return fmt.Errorf("adopt VM %s/%s: %w", namespace, id, err)
	}
	defer vm.events.Close()
	a := &adoption{vm: vm, j: vm.journal.Load()}
	switch vm.journal.Load().Phase {
	case journal.Fenced:
		return a.answerForFence(ctx)
	case journal.Released:
		vm.journal.Close()
		return reclaim(ctx, host, vm.dir, vm.journal.Load())
	}
	if err := vm.serve(func() (*VM, error) { return vm, nil }); err != nil {
		return fmt.Errorf("adopt VM %s/%s: %w", namespace, id, err)
	}
	a.abortMove()
	a.finishWake(ctx)
	if err := a.awaitEnd(ctx); err != nil {
		return errors.Join(err, vm.socket.close(vm.life))
	}
	// The one who ordered the end gets its answer first.
	retry.Sleep(ctx, answerWait)
	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoBound)
	defer cancel()
	vm.journal.Close() // another process may have it
	j := vm.journal.Load()
	if mine, err := a.stillOwner(); err != nil || !mine {
		return errors.Join(err, vm.socket.close(vm.life))
	}
	return errors.Join(vm.socket.close(vm.life), reclaim(bound, host, vm.dir, j), a.endOwnership(bound, j))
}

// abortMove ends a live move whose source's shim died before the vote: the connection died
// with it, and until the vote the source is its own master.
func (a *adoption) abortMove() {
	vm := a.vm
	j := vm.journal.Load()
	if c := vm.op.capture; c != nil && j.Move && j.Phase == journal.Sending {
		if err := c.abort(Captured); err != nil {
			vm.log.Error("take a live move back", "error", err)
		}
	}
}

const (
	answerWait   = time.Second            // for who ordered the end to hear of it
	owedInterval = 100 * time.Millisecond // between two looks whether an operation still needs the VM
)

// awaitEnd waits for the end of the VM, and of the operation that has its snapshot.
func (a *adoption) awaitEnd(ctx context.Context) error {
	select {
	case <-a.vm.owner.init.done:
	case <-ctx.Done():
	}
	for ctx.Err() == nil && a.needed() {
		retry.Sleep(ctx, owedInterval)
	}
	return ctx.Err()
}

// needed reports whether an operation still needs what the VM was.
func (a *adoption) needed() bool {
	vm := a.vm
	vm.mu.Lock()
	defer vm.mu.Unlock()
	j := vm.journal.Load()
	return vm.op.capture != nil && j.Digest != "" && (j.Phase == journal.Sending || j.Phase == journal.Prepared)
}

// stillOwner reports whether the journal still names this process: a Create may have taken
// the VM over, and what lies there is another task's then.
func (a *adoption) stillOwner() (bool, error) {
	vm := a.vm
	unlock, err := lockDir(filepath.Dir(vm.dir))
	if err != nil {
		return false, err
	}
	defer unlock()
	now, err := journal.Read(vm.dir)
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	return err == nil && now.Shim == vm.journal.Load().Shim, err
}

// endOwnership gives up a VM that went back to this node and then ended.
func (a *adoption) endOwnership(ctx context.Context, j *journal.Journal) error {
	if j.Phase != journal.Own {
		return nil
	}
	return a.vm.record().endOwnership(ctx, j.Generation, j.Spec.UID)
}

// checkAdoptable wants a VM whose shim is dead and that is not containerd's to end: an
// operation holds it, or held it, or wakes it, or an earlier successor ran it. It marks
// the journal.
func checkAdoptable(j *journal.Journal) error {
	alive, err := shimOf(j).Alive()
	if err != nil {
		return fmt.Errorf("its shim: %w", err)
	}
	wakes, err := wakeCommitted(j)
	if err != nil {
		return err
	}
	switch {
	case alive:
		return fmt.Errorf("its shim, process %d, is alive: %w", j.Shim.PID, errdefs.ErrAlreadyExists)
	case j.Phase == journal.Own && !j.Adopted && !wakes:
		return fmt.Errorf("no operation holds it (%s): %w", j.Phase, errdefs.ErrFailedPrecondition)
	case j.Process == nil && !j.Phase.Destination() && j.Phase != journal.Released:
		return fmt.Errorf("it has no VMM: %w", errdefs.ErrNotFound)
	}
	j.Adopted = true
	return nil
}

func adoptVM(ctx context.Context, host *Host, namespace, id string) (*VM, error) {
	dir := host.Config.VMDir(namespace, id)
	j, err := claimJournal(dir, checkAdoptable)
	if err != nil {
		return nil, err
	}
	log := slog.Default().With("vm", namespace+"/"+id)
	vm := newVM(ctx, slog.Default(), events.NewQueue(ctx, discardEvents{}, log), namespace, id, id)
	vm.host, vm.dir, vm.origin.adopted = host, dir, true
	vm.journal.Begin(dir, j)
	vm.pod.adoptOwner(j)
	vm.owner.init, vm.owner.state = vm.owner.newProcess("", j.Stdio, nil), TaskRunning
	if j.Phase == journal.Fenced || j.Phase == journal.Released {
		vm.state, vm.owner.state = Stopped, TaskStopped
		return vm, nil
	}
	a := &adoption{vm: vm, j: j}
	if err := a.openNICs(ctx); err != nil {
		return nil, err
	}
	if err := cgroup.Join(j.Cgroup, os.Getpid()); err != nil {
		log.Warn("enter the cgroup of an adopted VM", "error", err)
	}
	wakes, err := wakeCommitted(j)
	switch {
	case err != nil:
		return nil, err
	case wakes:
		vm.pod.adoptMembers(j, TaskArmed)
		return vm, a.takeOver(ctx)
	}
	vm.pod.adoptMembers(j, TaskRunning)
	if j.Phase == journal.Own {
		return vm, a.resumeOwn(ctx)
	}
	return vm, a.resumeHold(ctx)
}

// discardEvents takes the events of a task that containerd does not know any more.
type discardEvents struct{}

func (discardEvents) Publish(context.Context, string, any) error { return nil }
