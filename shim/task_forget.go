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

// Bounds of what a guest has to forget.
const (
	forgetBound = time.Second // that a guest may take to hear of it, while an operation waits
	forgetPause = time.Second // until an operation waits for it again, where that was too short
	maxOwed     = 4096        // execs; of more, the oldest stay in the guest
)

// forgetting is what the guest has not heard of yet. The VM's lock guards it.
type forgetting struct {
	owed  []string  // execs
	asked int       // how often it was to be told
	under bool      // it is being told
	next  time.Time // no operation waits for it before
}

// owe notes that the guest is to forget an exec. vm.mu is held.
func owe(vm *VM, id string) {
	f := &vm.traffic.forgetting
	f.owed = append(f.owed, id)
	f.owed = f.owed[max(0, len(f.owed)-maxOwed):]
}

// forgetOwed has the guest forget what it has not heard of yet. What it does not answer to is owed still. One at a
// time does this: it takes along what is owed meanwhile.
func forgetOwed(ctx context.Context, vm *VM) {
	f := &vm.traffic.forgetting
	vm.mu.Lock()
	defer vm.mu.Unlock()
	f.asked++
	if f.under {
		return
	}
	f.under = true
	defer func() { f.under = false }()
	for len(f.owed) > 0 && ctx.Err() == nil {
		agent, id, asked := vm.agent, f.owed[0], f.asked
		vm.mu.Unlock()
		err := forget(ctx, agent, id)
		if err != nil {
			vm.log.Debug("forget exec", "process", id, "error", err)
		}
		vm.mu.Lock()
		switch {
		case err == nil || !mayNotHaveHeard(err):
			f.owed = slices.DeleteFunc(f.owed, func(other string) bool { return other == id })
		case f.asked == asked:
			return
		}
	}
}

// forgetSoon is forgetOwed in the background. An operation waits for it, so that the guest of its snapshot has
// forgotten. A guest that is slow keeps no operation from its VM: after a short time it goes on as traffic. vm.mu is
// held.
func forgetSoon(vm *VM) {
	f := &vm.traffic.forgetting
	if len(f.owed) == 0 {
		return
	}
	if f.under { // which goes on with these
		f.asked++
		return
	}
	if time.Now().Before(f.next) {
		forgetAsTraffic(vm)
		return
	}
	over := vm.call()
	go func() {
		ctx, cancel := context.WithTimeout(vm.life, forgetBound)
		defer cancel()
		forgetOwed(ctx, vm)
		over()
		if ctx.Err() == nil {
			return
		}
		vm.mu.Lock()
		defer vm.mu.Unlock()
		f.next = time.Now().Add(forgetPause)
		forgetAsTraffic(vm)
	}()
}

// forgetAsTraffic is forgetOwed that ends with the traffic, which goes on with it when it starts. vm.mu is held.
func forgetAsTraffic(vm *VM) {
	if len(vm.traffic.owed) == 0 {
		return
	}
	if ctx, leave, ok := vm.traffic.join(); ok {
		go func() {
			defer leave()
			forgetOwed(ctx, vm)
		}()
	}
}

// forgetAfterPause is forgetSoon for who does not hold vm.mu.
func forgetAfterPause(vm *VM) {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	forgetSoon(vm)
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
