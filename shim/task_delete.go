package shim

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/containerd/containerd/api/events"
	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/pkg/protobuf"
	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"godwit.dev/godwit/internal/retry"
	"godwit.dev/godwit/shim/bundle"
	"godwit.dev/godwit/shim/journal"
)

// Delete forgets an exec, or frees all that the task has. A Start or a Delete that has begun ends first, as with runc's
// shim: of two clients that remove one container, the second one finds none, which is no failure for it.
func (s *Service) Delete(ctx context.Context, r *taskapi.DeleteRequest) (*taskapi.DeleteResponse, error) {
	s.abandonCreate(ctx, r)
	return on(s, r.GetID(), func(t *Task) (*taskapi.DeleteResponse, error) {
		vm := t.vm
		over, err := beginDelete(ctx, t, r.GetExecID())
		if err != nil {
			return nil, err
		}
		defer over()
		var p *process
		switch {
		case r.GetExecID() != "":
			p, err = t.removeExec(r.GetExecID())
		case t.member != nil:
			p, err = t.init, t.member.delete(ctx)
		default:
			p, err = t.init, t.delete(ctx)
		}
		if err != nil {
			return nil, err
		}
		if p.id == "" && t.vm.isPod() {
			s.leavePod(t)
		}
		vm.mu.Lock()
		defer vm.mu.Unlock()
		at := protobuf.ToTimestamp(p.exitedAt)
		vm.events.Send(&events.TaskDelete{ContainerID: t.id, ID: p.id, Pid: t.pid(), ExitStatus: p.status, ExitedAt: at})
		return &taskapi.DeleteResponse{Pid: t.pid(), ExitStatus: p.status, ExitedAt: at}, nil
	})
}

// beginDelete waits for the Start of the process that has begun. A Delete of the task waits for those that came before.
func beginDelete(ctx context.Context, t *Task, execID string) (over func(), err error) {
	if execID != "" {
		t.vm.mu.Lock()
		p := t.execs[execID]
		t.vm.mu.Unlock()
		if p == nil {
			return func() {}, nil
		}
		return func() {}, awaitStart(ctx, t, &p.starting)
	}
	select {
	case t.deletes <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("delete task %s: another Delete is not over: %w", t.id, ctx.Err())
	}
	over = func() { <-t.deletes }
	err = awaitStart(ctx, t, &t.startOver)
	if err == nil && t.gone() {
		err = fmt.Errorf("task %s is deleted: %w", t.id, errdefs.ErrNotFound)
	}
	if err != nil {
		over()
		return nil, err
	}
	return over, nil
}

// awaitStart returns when the Start is over that closes the channel at begun; nil there: none has begun.
func awaitStart(ctx context.Context, t *Task, begun *chan struct{}) error {
	t.vm.mu.Lock()
	over := *begun
	t.vm.mu.Unlock()
	if over == nil {
		return nil
	}
	select {
	case <-over:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("task %s: a Start is not over: %w", t.id, ctx.Err())
	}
}

// awaitStarting has a call that needs a task that runs wait for the Start that has begun, as with runc's shim.
func awaitStarting(ctx context.Context, t *Task) error {
	t.vm.mu.Lock()
	starts := t.state == TaskStarting
	t.vm.mu.Unlock()
	if !starts {
		return nil
	}
	return awaitStart(ctx, t, &t.startOver)
}

// delete frees what is left of a task that has ended or never ran. What cannot be
// freed fails the call, so that it can be repeated.
func (t *Task) delete(ctx context.Context) error {
	vm := t.vm
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoBound)
	defer cancel()
	if vm.inState(Created) {
		vm.endCreated(ctx, 0) // It never started, so it ended well
	}
	vm.ending.awaitOperation(ctx)
	if err := t.enterDeleting(); err != nil {
		return fmt.Errorf("delete task %s: %w", t.id, err)
	}
	if err := vm.releaseResources(ctx); err != nil {
		t.leave(Deleting, Stopped, TaskStopped)
		return fmt.Errorf("delete task %s: %w", t.id, err)
	}
	t.leave(Deleting, Deleted, TaskDeleted)
	return nil
}

// enterDeleting refuses a VM that has ended while an operation held it: the operation
// decides what comes of its snapshot.
func (t *Task) enterDeleting() error {
	vm := t.vm
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if err := vm.mutable(); err != nil {
		return err
	}
	if j := vm.journal.Load(); vm.op.capture != nil && (j.Phase == journal.Sending || j.Phase == journal.Prepared) {
		return fmt.Errorf("operation %s holds VM %s (%s): %w", j.Operation, vm.id, j.Phase, errdefs.ErrFailedPrecondition)
	}
	if vm.state != Stopped {
		return fmt.Errorf("VM %s is %s, not %s: %w", vm.id, vm.state, Stopped, errdefs.ErrFailedPrecondition)
	}
	if err := vm.setState(Deleting); err != nil {
		return err
	}
	return t.setState(TaskDeleting)
}

func (vm *VM) releaseResources(ctx context.Context) error {
	if err := vm.pod.awaitCreations(ctx); err != nil {
		return err
	}
	if err := vm.pod.changing.Take(ctx); err != nil { // no container's Delete writes the journal that goes
		return err
	}
	defer vm.pod.changing.Give()
	vm.stopTraffic()
	vm.mu.Lock()
	nics, all := vm.nic.wiring(), vm.processes()
	vm.mu.Unlock()
	if nics != nil {
		if err := nics.Close(); err != nil {
			return err
		}
	}
	for _, p := range all {
		if p.pump != nil {
			p.pump.Close()
		}
	}
	if err := vm.socket.close(vm.life); err != nil {
		return err
	}
	if j := vm.journal.Load(); j.Phase == journal.Fenced && j.Self { // the record was out of reach when the task ended
		if err := vm.fence(ctx, "the task ended before it ran"); err != nil {
			vm.log.Warn("give back wake", "error", err)
		}
	}
	vm.journal.Close()
	j := vm.journal.Load()
	if err := reclaim(ctx, vm.host, vm.dir, j); err != nil {
		return err
	}
	if j.Phase == journal.Own || j.Phase == journal.Sending { // the latter where a resume could not be written
		if err := vm.record().endOwnership(ctx, j.Generation, j.Spec.UID); err != nil {
			vm.log.Warn("give up ownership", "error", err)
		}
	}
	if err := vm.owner.bundle.Hooks.Run(ctx, bundle.Poststop, vm.owner.hookState(specs.StateStopped)); err != nil {
		vm.log.Warn("run hooks", "error", err)
	}
	return nil
}

func (vm *VM) inState(s State) bool {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	return vm.state == s
}

// Shutdown ends the shim if its tasks are gone or have ended. It refuses nothing: a shim
// with a task that runs stays, and one with a task that is being created stays if that succeeds.
func (s *Service) Shutdown(context.Context, *taskapi.ShutdownRequest) (*emptyResponse, error) {
	s.mu.Lock()
	tasks := slices.Collect(maps.Values(s.tasks))
	if s.vm != nil && s.vm.isPod() { // it is asked after each container's end: leavePod knows the last one
		s.mu.Unlock()
		return &emptyResponse{}, nil
	}
	s.asked = true
	s.mu.Unlock()
	if len(tasks) == 0 {
		s.shutdown.Shutdown()
		return &emptyResponse{}, nil
	}
	go s.leave(tasks)
	return &emptyResponse{}, nil
}

// lastAnswer is how long a shim without tasks stays, so that its answer gets out.
const lastAnswer = 200 * time.Millisecond

// leavePod forgets a task that was deleted, and ends the shim after the last one: the sandbox may go before its
// containers. containerd 2.3 asks for no end then.
func (s *Service) leavePod(t *Task) {
	if t.member != nil {
		s.removeMember(t)
	}
	s.endWithout(t.vm)
}

// endWithout ends the shim if no task of the VM is left; nil: there has been none.
func (s *Service) endWithout(vm *VM) {
	s.mu.Lock()
	left := s.stays || len(s.tasks) > 1
	s.mu.Unlock()
	if vm != nil {
		vm.mu.Lock()
		left = left || vm.owner.state != TaskDeleted
		vm.mu.Unlock()
	}
	if !left {
		time.AfterFunc(lastAnswer, s.shutdown.Shutdown)
	}
}

// Stay keeps a shim that has no task any more.
func (s *Service) Stay() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stays = true
}

// Release takes Stay back.
func (s *Service) Release() {
	s.mu.Lock()
	s.stays = false
	vm := s.vm
	s.mu.Unlock()
	s.endWithout(vm)
}

// leave ends the shim once its tasks have ended and their output has drained.
func (s *Service) leave(tasks []*Task) {
	for _, t := range tasks {
		select {
		case <-t.created:
		case <-s.life.Done():
			return
		}
		t.vm.mu.Lock()
		init, failed := t.init, t.state == TaskNew
		t.vm.mu.Unlock()
		if failed {
			return // Create itself ends the shim
		}
		select {
		case <-init.done:
		case <-s.life.Done():
			return
		}
	}
	s.afterDelete(s.life, "") // which is answered first
	s.shutdown.Shutdown()
}

// deleteInterval is between two looks whether a Delete is over.
const deleteInterval = 10 * time.Millisecond

// afterDelete waits for the end of a Delete under way, of the whole VM or of a container of a pod. A containerd that
// starts asks for the pids of each task that it finds, and forgets the one that is not there. It keeps any other. If
// containerd was killed in that Delete, no client would come back for the task, or call Shutdown for its shim.
func (s *Service) afterDelete(ctx context.Context, id string) {
	for s.deleting(id) && ctx.Err() == nil {
		retry.Sleep(ctx, deleteInterval)
	}
}

func (s *Service) deleting(id string) bool {
	s.mu.Lock()
	vm, t := s.vm, s.tasks[id]
	s.mu.Unlock()
	if vm == nil {
		return false
	}
	vm.mu.Lock()
	defer vm.mu.Unlock()
	return vm.state == Deleting || t != nil && t.state == TaskDeleting
}
