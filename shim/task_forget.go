package shim

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	agentv1 "godwit.dev/godwit/api/agent/v1"
)

// The guest keeps an exec that has ended until it is told to forget it, and lists it when it wakes. An exec may be
// deleted while the guest cannot be told: the shim owes it then, until the VM runs or the next exec is deleted.

// forgetBound is what a guest may take to hear that an exec is not asked for any more.
const forgetBound = time.Second

// forgetOwed has the guest forget what it has not heard of yet. What it does not answer to is owed still.
func forgetOwed(ctx context.Context, vm *VM) {
	vm.mu.Lock()
	agent, owed := vm.agent, slices.Clone(vm.traffic.owed)
	vm.mu.Unlock()
	for _, id := range owed {
		if err := forget(ctx, agent, id); err != nil {
			vm.log.Debug("forget exec", "process", id, "error", err)
			if mayNotHaveHeard(err) {
				return
			}
		}
		vm.mu.Lock()
		vm.traffic.owed = slices.DeleteFunc(vm.traffic.owed, func(other string) bool { return other == id })
		vm.mu.Unlock()
	}
}

// forgetSoon is forgetOwed in the background. An operation waits for it.
func forgetSoon(vm *VM) {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if len(vm.traffic.owed) == 0 {
		return
	}
	over := vm.call()
	go func() {
		defer over()
		forgetOwed(vm.life, vm)
	}()
}

func forget(ctx context.Context, agent agentv1.AgentService, id string) error {
	ctx, cancel := context.WithTimeout(ctx, forgetBound)
	defer cancel()
	_, err := agent.Remove(ctx, &agentv1.RemoveRequest{Id: id})
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

func mayNotHaveHeard(err error) bool {
	return errdefs.IsUnavailable(err) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
