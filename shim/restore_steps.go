package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/internal/retry"
	"godwit.dev/godwit/shim/bundle"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/stdio"
	"godwit.dev/godwit/shim/steps"
)

func (s *starting) load(ctx context.Context, u *steps.Undo) (err error) {
	// Before the VMM is killed, which the step before this one has started: see postcopy.stop.
	u.Add("stop to fill RAM", func(ctx context.Context) error { s.vm.postcopy.stop(ctx); return nil })
	f, err := os.Open(stateFile(s.vm.dir))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return s.vm.machine.LoadState(ctx, f)
}

// commit asks for the claim once more and writes OWN before the VM may run: a node
// that crashes in between knows that it is the owner. From here on the caller's patience
// does not count: a VM that runs is not killed because containerd starts again.
func (s *starting) commit(ctx context.Context, _ *steps.Undo) error {
	if !s.detach() {
		return fmt.Errorf("the caller of Start is gone: %w", context.Canceled)
	}
	s.late = time.AfterFunc(time.Duration(s.vm.host.Config.Timeouts.Boot), s.boundAfterFill(s.abort))
	if err := s.ready(s.vm.journal.Load()); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(s.vm.host.Config.Timeouts.Daemon))
	defer cancel()
	generation, err := s.committed, error(nil)
	if generation == 0 {
		generation, err = commitWake(ctx, s.vm)
	}
	if err != nil {
		return err
	}
	return s.vm.journal.Update(func(j *journal.Journal) error {
		err := s.ready(j)
		s.owns(generation)(j)
		return err
	})
}

// commitRetry is the pause between two asks for the commit.
const commitRetry = 100 * time.Millisecond

// commitWake asks again while nothing answers: godwitd may be starting anew, and the commit may have been written. To
// ask twice is to ask once.
func commitWake(ctx context.Context, vm *VM) (uint64, error) {
	for {
		generation, err := vm.record().commitWake(ctx, vm.journal.Load())
		if !errdefs.IsUnavailable(err) {
			return generation, err
		}
		if retry.Sleep(ctx, commitRetry); ctx.Err() != nil {
			return 0, err
		}
	}
}

// owns is what the journal says after the commit.
func (s *starting) owns(generation uint64) func(*journal.Journal) {
	return func(j *journal.Journal) {
		j.Phase, j.Generation, j.Waking, j.Readdressed, j.Armed = journal.Own, generation, true, s.readdress, s.armed
		j.Notices = s.wakeNotices(j)
	}
}

// ready refuses a journal that does not let the VM run: a fence stays.
func (s *starting) ready(j *journal.Journal) error {
	if j.Phase != journal.Ready {
		return fmt.Errorf("VM %s is %s here, not %s: %w", s.vm.id, j.Phase, journal.Ready, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// verifyGuest shows that the guest is the one that went to sleep, and takes up its stdio where it was left.
func (s *starting) verifyGuest(ctx context.Context, _ *steps.Undo) error {
	j := s.vm.journal.Load()
	r, err := s.woken.answer, s.woken.err
	if err != nil {
		return err
	}
	if r.GetBootId() != j.BootID || r.GetUptimeMs() < j.Resume.UptimeMS {
		return fmt.Errorf("the guest is at boot %s, up %d ms; the snapshot is of boot %s, up %d ms: %w",
			r.GetBootId(), r.GetUptimeMs(), j.BootID, j.Resume.UptimeMS, errdefs.ErrDataLoss)
	}
	if !hasProcess(r.GetProcesses(), s.task.init.guest) {
		return fmt.Errorf("the restored guest has no init: %w", errdefs.ErrDataLoss)
	}
	if err := s.checkMembers(r.GetProcesses()); err != nil {
		return err
	}
	s.openExecs(r.GetProcesses())
	return s.resumeOperation(ctx)
}

// hostFiles are those of the bundle that say where the guest is. A successor has no
// bundle: its guest keeps those that it has.
func (s *starting) hostFiles() bundle.Copies {
	if s.vm.owner.bundle == nil {
		return nil
	}
	return s.vm.owner.bundle.Copies.Select("/etc/hosts", "/etc/resolv.conf", "/etc/hostname")
}

// resumeOperation takes up what the VM was about when it went to sleep. Where that was stays in the
// journal until the VM is known to be awake.
func (s *starting) resumeOperation(ctx context.Context) error {
	vm, j := s.vm, s.vm.journal.Load()
	if s.readdress && !s.plugs {
		if s.woken.links = vm.nic.up(ctx); ctx.Err() != nil {
			return ctx.Err()
		}
	}
	vm.mu.Lock()
	s.task.init.started, s.task.init.pump = true, stdio.NewPump(s.task.init.guest, s.streams, j.Resume.Init)
	s.attachMembers(&j.Resume)
	vm.mu.Unlock()
	if vm.nic.wiring() != nil && !s.plugs && !s.announced {
		go vm.nic.announce(vm.life)
	}
	var err error
	if j.Self {
		err = s.settleWake(ctx, j)
	}
	return errors.Join(err, removeFile(stateFile(vm.dir)))
}

// settleWake closes a wake that the shim opened. The VM runs by now, so that a daemon
// that cannot be reached is no failure: it will find the operation committed.
func (s *starting) settleWake(ctx context.Context, j *journal.Journal) error {
	vm := s.vm
	before := *j
	before.Generation--
	if err := vm.record().finishWake(ctx, &before, nodev1.Phase_PHASE_SUCCEEDED, ""); err != nil {
		vm.log.Warn("close operation", "operation", j.Operation, "error", err)
		return nil
	}
	return vm.write(func(j *journal.Journal) {
		j.Operation, j.Attempt, j.Self, j.Digest, j.Repository = "", 0, false, "", ""
	})
}

// giveUp ends a task whose Start failed: what was made is gone, and the record hears
// whether the VM may have run here. The VMM ends first: a shim that dies between both must
// leave no VM to a successor that would let it run on.
func (s *starting) giveUp(ctx context.Context, cause error) error {
	vm := s.vm
	s.streams.Close()
	s.releaseExecs()
	s.closeMembers()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoBound)
	defer cancel()
	var err error
	if vm.origin.restored && vm.machine != nil {
		err = vm.machine.Kill(ctx)
	}
	err = errors.Join(err, s.reportFailure(ctx, cause.Error()))
	vm.ending.end(ctx, killed, time.Now())
	return err
}

func (s *starting) reportFailure(ctx context.Context, reason string) error {
	vm := s.vm
	if !vm.origin.restored {
		return nil
	}
	if !s.ran { // this attempt never runs here, whatever is lost
		return vm.fence(ctx, reason)
	}
	j := *vm.journal.Load()
	if !j.Self {
		return nil // the engine that opened the operation sees the task end
	}
	j.Generation = s.opened
	return vm.record().finishWake(ctx, &j, nodev1.Phase_PHASE_LOST_AT_DEST, reason)
}
