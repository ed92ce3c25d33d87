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
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"godwit.dev/godwit/internal/durable"
	"godwit.dev/godwit/shim/bundle"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/proc"
)

// dyingBound is how long a shim that was killed may take to be gone: containerd hears of its
// end before it is over. hungBound is how long one that hangs may take, once it is killed.
// Variables for the tests.
var (
	dyingBound = 2 * time.Second
	hungBound  = time.Second
)

// CleanUp frees what a VM has whose shim is gone, and answers the pid that its task showed. While an operation holds or
// wakes the VM it touches nothing: the VM lives on, and its successor obeys the record. So it does where a process has
// the VM that is newer than this one, a new task of that name: containerd may call late after an ordinary end. A shim
// that hangs was given up by containerd: it is killed first, for it may go on at any moment, and what it has left is
// looked at after that. The hooks that wait for the end of the container run, unless the shim had come so far.
//
// of is the bundle of the task that containerd deletes. The VM of a pod that has the pod's name may be another
// sandbox's, which has a bundle of its own: nothing of it is touched. Empty: the VM's own, whichever that is.
func CleanUp(ctx context.Context, host *Host, dir, of string) (pid int, err error) {
	var seen journal.Journal
	mine := func(j *journal.Journal) error {
		seen = *j
		if of != "" && j.Bundle != "" && filepath.Base(j.Bundle) != filepath.Base(of) {
			return errOthers
		}
		err := host.checkAbandoned(j)
		if of != "" && j.Bundle == "" && errdefs.IsAlreadyExists(err) {
			return errOthers // the fence of an attempt before it: who makes the next task holds it meanwhile
		}
		return err
	}
	j, err := claimJournal(dir, mine)
	for met := (proc.ID{}); errdefs.IsAlreadyExists(err) && seen.Shim != met; j, err = claimJournal(dir, mine) {
		met = seen.Shim
		has := func() (bool, error) { return stillHas(dir, met, mine) }
		if err := awaitProcess(ctx, shimOf(&seen), has); err != nil {
			return 0, fmt.Errorf("clean up what shim %d holds in %s, of which nothing is freed: %w", met.PID, dir, err)
		}
	}
	switch {
	case errors.Is(err, errOthers):
		return 0, nil
	case errdefs.IsNotFound(err):
		return 0, sweep(dir)
	case j == nil && (errdefs.IsAlreadyExists(err) || errors.Is(err, errOwed)):
		return seen.Holder.PID, nil
	case j == nil && err != nil:
		return 0, err
	case err != nil: // the disk takes no word: what a dead shim has left is freed all the same
		slog.Warn("take what a dead shim has left", "dir", dir, "error", err)
		if !errors.Is(err, durable.ErrUnsynced) {
			j = &seen
		}
	}
	return j.Holder.PID, cleanUp(ctx, host, dir, j)
}

// stillHas reports whether a process has the VM now. While its end was awaited its journal may have become another
// task's, whose shim it is.
func stillHas(dir string, id proc.ID, mine func(*journal.Journal) error) (has bool, err error) {
	err = locked(dir, func(now *journal.Journal, err error) error {
		if err == nil {
			has = errdefs.IsAlreadyExists(mine(now)) && now.Shim == id
		}
		return err
	})
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	return has, err
}

// awaitProcess waits for the end of a process that has a VM, and kills one that is older than this
// and does not end. A newer one lives on, and one that no longer has the VM.
func awaitProcess(ctx context.Context, id proc.ID, has func() (bool, error)) error {
	dying, cancel := context.WithTimeout(ctx, dyingBound)
	defer cancel()
	err := await(dying, id)
	switch {
	case err == nil:
		return nil
	case dying.Err() == nil || ctx.Err() != nil: // that it hangs is not known
		return err
	}
	if later, err := startedLater(id); later || err != nil {
		return err
	}
	if has, err := has(); !has || err != nil {
		return err
	}
	slog.Warn("kill a shim that hangs", "pid", id.PID)
	bound, cancel := context.WithTimeout(ctx, hungBound)
	defer cancel()
	return kill(bound, id)
}

// What ends processes, and tells them apart. Variables for the tests.
var (
	await = func(ctx context.Context, id proc.ID) error { return id.Wait(ctx) }
	kill  = func(ctx context.Context, id proc.ID) error { return id.Kill(ctx) }
	ownID = func() (proc.ID, error) { return proc.Find(os.Getpid()) }
)

// startedLater reports whether a process was started after this one.
func startedLater(id proc.ID) (bool, error) {
	own, err := ownID()
	return err == nil && id.StartTime >= own.StartTime, err
}

// errOwed says that a VM of a dead shim is its successor's.
var errOwed = fmt.Errorf("an operation holds or wakes it, or it was adopted: %w", errdefs.ErrFailedPrecondition)

// errOthers says that a VM is another task's.
var errOthers = fmt.Errorf("another task has the VM: %w", errdefs.ErrFailedPrecondition)

// checkAbandoned wants a VM that a dead shim has left to its next owner.
func (h *Host) checkAbandoned(j *journal.Journal) error {
	wakes, err := wakeCommitted(j)
	switch {
	case j.Phase.Open(), j.Adopted:
		return errOwed
	case err != nil:
		return err
	case wakes && h.asks(): // without a daemon no successor is started
		return errOwed
	case j.Shim.PID == os.Getpid():
		return nil
	}
	alive, err := shimOf(j).Alive()
	if err != nil {
		return fmt.Errorf("its shim: %w", err)
	}
	if alive {
		return fmt.Errorf("process %d has it: %w", j.Shim.PID, errdefs.ErrAlreadyExists)
	}
	return nil
}

// endOwnershipBound bounds the word to the daemon that a VM is gone, which may be left unsaid.
const endOwnershipBound = time.Second

// cleanUp is CleanUp of a VM that this process has taken.
func cleanUp(ctx context.Context, host *Host, dir string, j *journal.Journal) error {
	if err := reclaim(ctx, host, dir, j); err != nil {
		return err
	}
	poststop(ctx, j)
	if j.Phase != journal.Own || j.Generation == 0 {
		return nil
	}
	// The VM is gone; the node gives it up if its daemon answers at once. If not, it
	// stays the owner, and may boot it again.
	ctx, cancel := context.WithTimeout(ctx, endOwnershipBound)
	defer cancel()
	vm := &VM{vmName: vmName{j.Spec.Namespace, j.Spec.ID}, host: host}
	_ = vm.record().endOwnership(ctx, j.Generation, j.Spec.UID)
	return nil
}

// sweep removes the directory of a VM that has no journal: its shim died before the first word of it, or the process
// that freed it died after the last. Nothing else is there.
func sweep(dir string) error {
	return locked(dir, func(_ *journal.Journal, err error) error {
		if !errdefs.IsNotFound(err) {
			return err
		}
		return removeVM(dir)
	})
}

// poststop runs the hooks of a bundle whose shim cannot. A failure is told: nothing can
// be taken back.
func poststop(ctx context.Context, j *journal.Journal) {
	if j.Spec == nil { // a fence, whose task is long gone
		return
	}
	hooks, annotations, err := bundle.HooksOf(j.Bundle)
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	if err == nil {
		err = hooks.Run(ctx, bundle.Poststop, specs.State{
			Version: specs.Version, ID: j.Spec.ID, Status: specs.StateStopped, Bundle: j.Bundle, Annotations: annotations,
		})
	}
	if err != nil {
		slog.Warn("run hooks", "vm", j.Spec.Namespace+"/"+j.Spec.ID, "error", err)
	}
}
