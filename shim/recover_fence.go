package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/internal/filelock"
	"godwit.dev/godwit/internal/retry"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/proc"
)

// askInterval is how often a fence asks whether its operation is over.
const askInterval = 500 * time.Millisecond

// A destination whose shim died before it wrote OWN has executed nothing, and no call can make it: it is fenced and
// freed at once. The fence answers for the attempt as long as its operation is open, since the engine may need that
// word to take a commit back. After that the record refuses the attempt, and the fence need not stay.

// claimJournal makes this process the one that settles what a dead shim has left in dir, if may
// allows it. It fences a destination in the same write.
func claimJournal(dir string, may func(*journal.Journal) error) (*journal.Journal, error) {
	unlock, err := lockDir(filepath.Dir(dir))
	if err != nil {
		return nil, err
	}
	defer unlock()
	j, err := journal.Read(dir)
	if err != nil {
		return nil, err
	}
	self, err := proc.Find(os.Getpid())
	if err != nil {
		return nil, err
	}
	if err := may(j); err != nil {
		return nil, err
	}
	if j.Phase.Destination() {
		j.Phase = journal.Fenced
	}
	j.Shim = self
	return j, j.Write(dir)
}

// lockDir orders those who take journals in dir. The lock dies with its process and is
// held for one read and one write.
func lockDir(dir string) (unlock func(), err error) {
	f, err := os.Open(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("lock %s: %w", dir, errdefs.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	if err := filelock.Lock(f, unix.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), f.Close())
	}
	return func() { f.Close() }, nil
}

// answerForFence frees the VM of a fenced journal and answers for the fence until its operation
// is over.
func (a *adoption) answerForFence(ctx context.Context) error {
	vm := a.vm
	j := vm.journal.Load()
	bound, cancel := context.WithTimeout(ctx, undoBound)
	defer cancel()
	if err := releaseResources(bound, vm.host, vm.dir, j); err != nil {
		return err
	}
	if err := removeFile(stateFile(vm.dir)); err != nil {
		return err
	}
	if j.Self {
		if err := vm.record().giveUpWake(bound, j, "the shim died before the VM ran"); err != nil {
			return err
		}
		return a.forget()
	}
	if err := vm.serve(func() (*VM, error) { return vm, nil }); err != nil {
		return err
	}
	for ctx.Err() == nil {
		if op, err := vm.record().openWake(ctx, j); err == nil && op == nil {
			break
		}
		retry.Sleep(ctx, askInterval)
	}
	return errors.Join(ctx.Err(), vm.socket.close(vm.life), a.forget())
}

// openWake answers the operation of j from the record, nil if it is over.
func (r vmRecord) openWake(ctx context.Context, j *journal.Journal) (*nodev1.Operation, error) {
	if r.records == nil {
		return nil, nil
	}
	rec, err := r.records.Get(ctx, &nodev1.GetRequest{Vm: r.vm})
	if errdefs.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, unavailable(err)
	}
	if op := rec.GetOperation(); op.GetId() == j.Operation && op.GetAttempt() == j.Attempt {
		return op, nil
	}
	return nil, nil
}

// giveUpWake closes a wake that a shim of this node had opened itself: nothing ran. The
// record alone says whether it was committed: an answer may be lost. A commit that
// arrives between the look and the abort is looked at once more.
func (r vmRecord) giveUpWake(ctx context.Context, j *journal.Journal, reason string) error {
	var err error
	for range 2 {
		var op *nodev1.Operation
		if op, err = r.openWake(ctx, j); op == nil || err != nil {
			return err
		}
		opened := *j
		opened.Generation = op.GetGeneration()
		if p := op.GetPhase(); p == nodev1.Phase_PHASE_COMMITTED || p == nodev1.Phase_PHASE_REVERTING {
			err = r.revertWake(ctx, &opened, reason)
		} else {
			err = r.abortWake(ctx, &opened, reason)
		}
		if !errdefs.IsFailedPrecondition(err) {
			return err
		}
	}
	return err
}

// fence makes the attempt of j one that never runs here, and closes the wake that the
// shim had opened itself. What cannot be told to the record now stays in the journal,
// for Delete or a successor to tell.
func (vm *VM) fence(ctx context.Context, reason string) error {
	j := vm.journal.Load()
	err := vm.journal.owe("a fence", func(j *journal.Journal) { j.Phase = journal.Fenced }) // a successor sets it too
	if !j.Self {
		return err
	}
	if e := vm.record().giveUpWake(ctx, j, reason); e != nil {
		return errors.Join(err, e)
	}
	return errors.Join(err, vm.write(func(j *journal.Journal) { j.Operation, j.Attempt, j.Self = "", 0, false }))
}

// forget removes the fence, unless a later task has cleared it.
func (a *adoption) forget() error {
	vm := a.vm
	unlock, err := lockDir(filepath.Dir(vm.dir))
	if err != nil {
		return err
	}
	defer unlock()
	now, err := journal.Read(vm.dir)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil || now.Phase != journal.Fenced || now.Shim != vm.journal.Load().Shim {
		return err
	}
	return errors.Join(removeVM(vm.dir), os.RemoveAll(vm.host.Config.VMRunDir(vm.namespace, vm.id)))
}
