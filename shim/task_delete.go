package shim

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/containerd/api/events"
	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/pkg/protobuf"
	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"godwit.dev/godwit/internal/retry"
	"godwit.dev/godwit/shim/bundle"
)

// Delete forgets an exec, or frees all that the task has.
func (s *Service) Delete(ctx context.Context, r *taskapi.DeleteRequest) (*taskapi.DeleteResponse, error) {
	return on(s, r.GetID(), func(vm *VM) (*taskapi.DeleteResponse, error) {
		var p *process
		var err error
		if r.GetExecID() != "" {
			p, err = vm.removeExec(ctx, r.GetExecID())
		} else {
			p, err = vm.init, vm.delete(ctx)
		}
		if err != nil {
			return nil, err
		}
		vm.mu.Lock()
		defer vm.mu.Unlock()
		at := protobuf.ToTimestamp(p.exitedAt)
		vm.events.Send(&events.TaskDelete{ContainerID: vm.id, ID: p.id, Pid: vm.pid(), ExitStatus: p.status, ExitedAt: at})
		return &taskapi.DeleteResponse{Pid: vm.pid(), ExitStatus: p.status, ExitedAt: at}, nil
	})
}

// delete frees what is left of a task that has ended or never ran. What cannot be
// freed fails the call, so that it can be repeated.
func (vm *VM) delete(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoBound)
	defer cancel()
	if vm.is(Created) {
		vm.endCreated(ctx, 0) // H26: it never started, so it ended well
	}
	vm.outlive(ctx)
	if err := vm.enterDeleting(); err != nil {
		return fmt.Errorf("delete task %s: %w", vm.id, err)
	}
	if err := vm.free(ctx); err != nil {
		vm.leave(Deleting, Stopped)
		return fmt.Errorf("delete task %s: %w", vm.id, err)
	}
	vm.leave(Deleting, Deleted)
	return nil
}

// enterDeleting refuses a VM that has ended while an operation held it: the operation
// decides what comes of its snapshot (H34).
func (vm *VM) enterDeleting() error {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if err := vm.mutable(); err != nil {
		return err
	}
	if p := vm.journal.Phase; vm.capture != nil && (p == Sending || p == Prepared) {
		return fmt.Errorf("operation %s holds VM %s (%s): %w", vm.journal.Operation, vm.id, p, errdefs.ErrFailedPrecondition)
	}
	if vm.state != Stopped {
		return fmt.Errorf("VM %s is %s, not %s: %w", vm.id, vm.state, Stopped, errdefs.ErrFailedPrecondition)
	}
	return vm.to(Deleting)
}

func (vm *VM) free(ctx context.Context) error {
	vm.still()
	vm.mu.Lock()
	nics, all := vm.nics, vm.processes()
	vm.mu.Unlock()
	if nics != nil {
		if err := nics.Close(); err != nil {
			return err
		}
	}
	for _, p := range all {
		if p.pumps != nil {
			p.pumps.streams.close()
		}
	}
	if err := vm.unserve(); err != nil {
		return err
	}
	if j := vm.noted(); j.Phase == Fenced && j.Self { // the record was out of reach when the task ended
		if err := vm.fence(ctx, "the task ended before it ran"); err != nil {
			vm.log.Warn("give back wake", "error", err)
		}
	}
	j := vm.noted()
	if err := reclaim(ctx, vm.host, vm.dir, j); err != nil {
		return err
	}
	if j.Phase == Own || j.Phase == Sending { // the latter where a thaw could not be written
		if err := vm.disown(ctx, j.Generation, j.Spec.UID); err != nil {
			vm.log.Warn("give up ownership", "error", err)
		}
	}
	if err := vm.bundle.Hooks.Run(ctx, bundle.Poststop, vm.hookState(specs.StateStopped)); err != nil {
		vm.log.Warn("run hooks", "error", err)
	}
	return nil
}

func (vm *VM) is(s State) bool {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	return vm.state == s
}

// Shutdown ends the shim if its task is gone or has ended. It refuses nothing: a shim
// whose task runs stays, and one whose task is being created stays if that succeeds.
func (s *Service) Shutdown(context.Context, *taskapi.ShutdownRequest) (*emptyResponse, error) {
	s.mu.Lock()
	vm := s.vm
	s.asked = true
	s.mu.Unlock()
	if vm == nil {
		s.shutdown.Shutdown()
		return &emptyResponse{}, nil
	}
	go s.leave(vm)
	return &emptyResponse{}, nil
}

// leave ends the shim once its task has ended and its output has drained.
func (s *Service) leave(vm *VM) {
	select {
	case <-vm.created:
	case <-s.life.Done():
		return
	}
	vm.mu.Lock()
	init, failed := vm.init, vm.state == New
	vm.mu.Unlock()
	if failed {
		return // Create itself ends the shim
	}
	select {
	case <-init.done:
	case <-s.life.Done():
		return
	}
	s.afterDelete(s.life) // which is answered first
	s.shutdown.Shutdown()
}

// deleteInterval is between two looks whether a Delete is over.
const deleteInterval = 10 * time.Millisecond

// afterDelete waits for the end of a Delete under way. A containerd that starts asks for the pids
// of each shim that it finds, and ends the one that has no task; it keeps the one that still has,
// for which nobody would call Shutdown if the containerd before was killed in that Delete.
func (s *Service) afterDelete(ctx context.Context) {
	vm, err := s.the()
	for err == nil && vm.is(Deleting) && ctx.Err() == nil {
		retry.Sleep(ctx, deleteInterval)
	}
}
