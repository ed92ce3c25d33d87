package shim

import (
	"context"
	"encoding/json"
	"fmt"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/shim/bundle"
	"godwit.dev/godwit/shim/journal"
)

// Update changes the container's limits, in the guest if it runs. The size of the VM
// stays as it is: what is beyond it is refused by name.
func (s *Service) Update(ctx context.Context, r *taskapi.UpdateTaskRequest) (*emptyResponse, error) {
	return on(s, r.GetID(), func(t *Task) (*emptyResponse, error) {
		if err := t.updateLimits(ctx, r); err != nil {
			return nil, fmt.Errorf("update task %s: %w", t.id, err)
		}
		return &emptyResponse{}, nil
	})
}

func (t *Task) updateLimits(ctx context.Context, r *taskapi.UpdateTaskRequest) error {
	vm := t.vm
	if err := awaitStarting(ctx, t); err != nil {
		return err
	}
	vm.mu.Lock()
	err, state, agent, j, restored := vm.mutable(), vm.state, vm.agent, vm.journal.Load(), vm.origin.restored
	if err == nil && t.state.over() { // of a pod, whose VM runs on
		err = fmt.Errorf("it is %s: %w", t.state, errdefs.ErrFailedPrecondition)
	}
	over := vm.call()
	vm.mu.Unlock()
	defer over()
	if err == nil && state != Running && state != Created {
		err = fmt.Errorf("VM is %s: %w", state, errdefs.ErrFailedPrecondition)
	}
	if err == nil && state == Created && restored { // its guest goes on with what it has, and is asked nothing before
		err = fmt.Errorf("the VM is not awake yet: start it first: %w", errdefs.ErrFailedPrecondition)
	}
	if err != nil {
		return err
	}
	if !j.Spec.HasAgent() {
		return fmt.Errorf("limits of a running VM: %w", errNoAgent)
	}
	change, err := t.bundle.ReadUpdate(r.GetResources().GetValue(), r.GetAnnotations(), j.Spec)
	if err != nil || change == nil {
		return err
	}
	if state == Running {
		data, err := json.Marshal(change)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, guestBound)
		defer cancel()
		if _, err := agent.Update(ctx, &agentv1.UpdateRequest{Resources: data, Container: t.container()}); err != nil {
			return err
		}
	}
	return t.noteLimits(change, state)
}

// noteLimits keeps the limits in the Spec, where Start finds them.
func (t *Task) noteLimits(change *specs.LinuxResources, state State) error {
	vm := t.vm
	return vm.journal.Update(func(j *journal.Journal) error {
		if state == Created && !vm.inState(Created) {
			return fmt.Errorf("VM has been started meanwhile: %w", errdefs.ErrFailedPrecondition)
		}
		sp := j.Spec.Clone()
		c := t.containerOf(sp)
		if c == nil || c.OCI == nil || c.OCI.Linux == nil {
			return nil
		}
		l := c.OCI.Linux
		l.Resources = bundle.MergeResources(l.Resources, change)
		j.Spec = sp
		return nil
	})
}
