package shim

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/containerd/errdefs"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/shim/stdio"
)

// command runs args as the container's own process would run, without streams, and answers how
// it ended. The guest knows it by id: one that it has is not run again, and it is there until
// it is dismissed. containerd hears nothing of it.
func (t *Task) command(ctx context.Context, id string, args []string) (status uint32, err error) {
	vm := t.vm
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

// unendedCommand answers a command that has not ended, for all that is known. No operation gets the VM
// before it is dismissed, or dropped.
func (t *Task) unendedCommand(id string) *process {
	vm := t.vm
	p := t.newProcess(id, stdio.URIs{}, nil)
	vm.mu.Lock()
	defer vm.mu.Unlock()
	t.orphan(p)
	return p
}

// killCommand has the guest kill and forget a command that is suspected, for as long as it takes.
func (t *Task) killCommand(p *process) {
	vm := t.vm
	ctx, cancel := context.WithTimeout(vm.life, guestBound)
	defer cancel()
	if t.endOrphan(ctx, p) {
		t.orphanEnded(p)
		return
	}
	go t.endOrphanLater(p) // it stands still
}

// forgetCommand has the guest forget a command that has ended.
func (t *Task) forgetCommand(id string) {
	vm := t.vm
	ctx, cancel := context.WithTimeout(vm.life, guestBound)
	defer cancel()
	t.forgetExec(ctx, t.newProcess(id, stdio.URIs{}, nil))
}
