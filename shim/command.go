package shim

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/containerd/errdefs"

	agentv1 "godwit.dev/godwit/api/agent/v1"
)

// command runs args as the container's own process would run, without streams, and answers how
// it ended. The guest knows it by id: one that it has is not run again, and it is there until
// it is dismissed. containerd hears nothing of it.
func (vm *VM) command(ctx context.Context, id string, args []string) (status uint32, err error) {
	c, agent := vm.spec().Container, vm.guest()
	if c == nil || c.OCI.Process == nil || agent == nil {
		return 0, fmt.Errorf("run %q: the VM has no container: %w", args, errdefs.ErrFailedPrecondition)
	}
	p := *c.OCI.Process
	p.Args, p.Terminal, p.ConsoleSize = args, false, nil
	process, err := json.Marshal(p)
	if err != nil {
		return 0, err
	}
	if _, err := agent.Start(ctx, &agentv1.StartRequest{Id: id, Process: process}); err != nil {
		return 0, err
	}
	r, err := agent.Wait(ctx, &agentv1.WaitRequest{Id: id})
	return r.GetExitStatus(), err
}

// dismiss has the guest forget a command that has ended; any other is killed first.
func (vm *VM) dismiss(id string, ended bool) {
	p := newProcess(id, Stdio{}, nil)
	ctx, cancel := context.WithTimeout(vm.life, guestBound)
	defer cancel()
	if !ended {
		if !vm.disavow(ctx, p) { // it stands still
			vm.mu.Lock()
			vm.renounced = append(vm.renounced, p)
			vm.mu.Unlock()
			go vm.renounce(p)
		}
		return
	}
	vm.forgetExec(ctx, p)
}
