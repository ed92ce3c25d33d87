package shim

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/internal/gcpause"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/steps"
	"godwit.dev/godwit/snapshot/stream"
)

// admit refuses a Start of a moved VM that is not this node's yet, and leaves the task as
// it is: its controller may commit later.
func (s *starting) admit(ctx context.Context) error {
	vm, j := s.vm, s.vm.journal.Load()
	if !vm.origin.restored || !j.Move || !vm.inState(Created) {
		return nil
	}
	if err := s.ready(j); err != nil || s.committed != 0 { // the record has said so
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(vm.host.Config.Timeouts.Daemon))
	defer cancel()
	var err error
	s.committed, err = vm.record().committed(ctx, j)
	return err
}

// takeUndo answers what is to be undone if Start fails: what an arrival has made too.
func (s *starting) takeUndo() *steps.Undo {
	a := s.vm.origin.arrival
	if a == nil {
		return new(steps.Undo)
	}
	a.cancel()
	<-a.done
	s.readdress, s.plugs, s.armed = a.start.readdress, a.start.plugs, a.start.armed
	return a.made
}

// skipIfArrived is a step that an arrival has taken already.
func (s *starting) skipIfArrived(fn func(context.Context, *steps.Undo) error) func(context.Context, *steps.Undo) error {
	return func(ctx context.Context, u *steps.Undo) error {
		if s.vm.origin.arrival != nil {
			return nil
		}
		return fn(ctx, u)
	}
}

// Complete starts the VMM: it needs the disks, and not their content.
func (a *arrival) Complete(ctx context.Context) error {
	if err := a.next(untouched, completed); err != nil {
		return err
	}
	if err := adoptDisks(a.disks); err != nil {
		return err
	}
	a.launching.Go(func() {
		a.launchErr = steps.Run(ctx, a.made, undoBound, []steps.Step{steps.New("start VMM", a.start.launch)})
		close(a.launched)
		if a.launchErr != nil {
			a.fail(a.launchErr)
		}
	})
	return nil
}

// Launched waits for the VMM. A source that paused its VM earlier would have it stand still for the start of this one.
func (a *arrival) Launched(ctx context.Context) error {
	if a.at == untouched {
		return fmt.Errorf("the VMM was not ordered: %w", errdefs.ErrFailedPrecondition)
	}
	select {
	case <-a.launched:
		return a.launchErr
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Load gives the VMM its device state. The VM is complete then, and has not executed an
// instruction.
func (a *arrival) Load(ctx context.Context, digest string, data json.RawMessage, written *stream.Written) error {
	if err := a.next(completed, loading); err != nil {
		return err
	}
	go gcpause.Defer(gcDelay) // which waits for a collection that is under way
	var resume journal.Resume
	if err := json.Unmarshal(data, &resume); err != nil {
		return fmt.Errorf("its resume information: %w: %w", err, errdefs.ErrDataLoss)
	}
	if err := a.checkArrived(a.vm.journal.Load(), &resume); err != nil {
		return err
	}
	if err := a.Launched(ctx); err != nil {
		return err
	}
	if _, err := a.state.Seek(0, 0); err != nil {
		return err
	}
	ready := func(j *journal.Journal) {
		j.Phase, j.Digest, j.Resume, j.BootID = journal.Ready, digest, resume, resume.BootID
		j.Stdio = a.vm.owner.configuredOutput(j.Stdio, resume)
		a.vm.pod.arrived(j, &resume)
	}
	a.start.written = written
	var drafting sync.WaitGroup
	drafting.Go(func() { a.vm.prewrite(ready) })
	begun := time.Now()
	err := a.vm.machine.LoadState(ctx, a.state)
	a.loading = time.Since(begun)
	if drafting.Wait(); err != nil {
		return err
	}
	err = a.vm.journal.Update(func(j *journal.Journal) error {
		if j.Phase != journal.Incoming {
			return fmt.Errorf("VM %s is %s here: %w", a.vm.id, j.Phase, errdefs.ErrFailedPrecondition)
		}
		ready(j)
		return nil
	})
	if err == nil { // while the source hears of it, and votes
		a.launching.Go(func() { a.vm.prewrite(a.start.owns(a.vm.journal.Load().Generation + 1)) })
	}
	return err
}
