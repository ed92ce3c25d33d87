package shim

import (
	"context"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/internal/failpoint"
	"godwit.dev/godwit/shim/bundle"
	"godwit.dev/godwit/shim/journal"
)

// A pod that is restored runs as a whole, and CRI starts its tasks one after the other, each once the one before it
// runs. So a Start arms its task: it is answered, and the task says RUNNING. The VM runs when all are armed whose
// containers ran in the snapshot.

// restores reports whether the VM is a pod that was restored and has not run yet; vm.mu is held.
func (p *pod) restores() bool { return p.vm.isPod() && p.vm.origin.restored && p.vm.state == Created }

// startOwner is start of the task that owns the VM, which arms it where the VM is a restored pod.
func (p *pod) startOwner(ctx context.Context) error {
	vm := p.vm
	vm.mu.Lock()
	restores := p.restores()
	vm.mu.Unlock()
	if restores {
		return p.arm(vm.owner)
	}
	return vm.owner.start(ctx)
}

// arm notes that a task is to run, and lets the VM run if it is the last.
func (p *pod) arm(t *Task) error {
	return failpoint.Record(podPoint, "Arm", func() error { return p.armed(t) })
}

func (p *pod) armed(t *Task) error {
	vm := p.vm
	vm.mu.Lock()
	defer vm.mu.Unlock()
	err := t.member.notKilled()
	if err == nil {
		err = t.setState(TaskArmed)
	}
	if err != nil {
		return fmt.Errorf("start task %s: %w", t.id, err)
	}
	missing, moves := p.missing(), vm.journal.Load().Move
	vm.log.Info("task is armed", "task", t.id, "missing", missing)
	if len(missing) == 0 && !moves { // else the order of a move lets it run
		go p.wake()
	}
	return nil
}

// missing are the names of the containers that ran in the snapshot and that no armed task has; vm.mu is held.
func (p *pod) missing() []string {
	j, armed := p.vm.journal.Load(), map[string]bool{}
	for _, t := range p.vm.tasks {
		armed[t.guest] = t.state == TaskArmed
	}
	return j.Spec.Pod.Missing(p.vm.owner.state == TaskArmed, func(guest string) bool {
		return armed[guest] || j.Resume.EndOf(guest) != nil
	})
}

// waits says why nothing can be run in the guest for a task that is armed; vm.mu is held.
func (p *pod) waits(t *Task) error {
	var missing []string
	if p.vm.state == Created {
		missing = p.missing()
	}
	if len(missing) == 0 {
		return fmt.Errorf("exec in container %s: its pod %s wakes at this moment: %w", t.id, p.vm.id,
			errdefs.ErrFailedPrecondition)
	}
	return fmt.Errorf("exec in container %s: its pod %s wakes when all its containers are started, and %s is missing. A "+
		"postStart hook or startupProbe that waits for an exec keeps a kubelet from starting them: leave it out: %w", t.id,
		p.vm.id, strings.Join(missing, ", "), errdefs.ErrFailedPrecondition)
}

// wake lets a VM run whose tasks are all armed. No client waits for the outcome: what fails ends all tasks.
func (p *pod) wake() {
	vm := p.vm
	err := vm.owner.start(vm.life)
	if err == nil {
		p.settle(vm.life)
		return
	}
	if vm.endCreated(vm.life, killed) { // what was in the way was found before the VM was touched
		vm.log.Error("wake pod", "error", err)
	}
}

// settle does what can be done only once the guest runs. What fails is logged: the pod runs.
func (p *pod) settle(ctx context.Context) {
	vm := p.vm
	if !vm.isPod() {
		return
	}
	p.endDeparted(ctx)
	ctx, cancel := context.WithTimeout(ctx, p.patience)
	defer cancel()
	agent := vm.guest()
	for guest, copies := range p.woken() {
		names := copies.Select("/etc/hosts", "/etc/resolv.conf", "/etc/hostname")
		if err := copyFiles(ctx, agent, guest, names); err != nil {
			vm.log.Warn("say where the guest is", "container", guest, "error", err)
		}
	}
	remove := removeLeft(vm, p.left())
	if err := remove(ctx); err != nil {
		vm.log.Warn("remove containers that had ended in the snapshot", "error", err)
		p.removals.meanwhile("what had ended in the snapshot", remove)
	}
}

// removeLeft answers what removes the containers that had ended in the snapshot. Each call ends with the first one that
// the guest does not remove, and the next call begins with another. Between two calls there is a pause, in which an
// operation gets the VM.
func removeLeft(vm *VM, guests []string) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, guestBound)
		defer cancel()
		for len(guests) > 0 {
			guest := guests[0]
			guests = guests[1:]
			if err := removeOneLeft(ctx, vm, guest); err != nil {
				guests = append(guests, guest)
				return fmt.Errorf("remove container %s: %w", guest, err)
			}
		}
		return nil
	}
}

// removeOneLeft removes a container that had ended in the snapshot. No operation gets the VM meanwhile: its snapshot
// would have a container in its Spec of which it does not say whether it runs. One that the guest does not remove
// within what operations wait for goes along, as one that has ended.
func removeOneLeft(ctx context.Context, vm *VM, guest string) error {
	vm.mu.Lock()
	held, over := vm.mutable(), vm.call()
	vm.mu.Unlock()
	defer over()
	if held != nil {
		return held
	}
	if err := vm.pod.changing.Take(ctx); err != nil {
		return err
	}
	defer vm.pod.changing.Give()
	if err := removeContainer(ctx, vm.guest(), guest); err != nil {
		return err
	}
	_ = vm.journal.owe("that a container is gone", func(j *journal.Journal) { forgetGuest(j, guest) })
	return nil
}

// woken are the containers that run, and what of the host each has a copy of. One that is being created is not among
// them: nothing of it is known yet.
func (p *pod) woken() map[string]bundle.Copies {
	p.vm.mu.Lock()
	defer p.vm.mu.Unlock()
	all := map[string]bundle.Copies{}
	for _, t := range p.vm.tasks {
		if t.member != nil && t.state == TaskRunning {
			all[t.guest] = t.bundle.Copies
		}
	}
	return all
}

// left are the containers of the Spec that no task has: they had ended in the snapshot, and no client wants them.
func (p *pod) left() (guests []string) {
	vm := p.vm
	vm.mu.Lock()
	defer vm.mu.Unlock()
	bound := map[string]bool{}
	for _, t := range vm.tasks {
		bound[t.guest] = true
	}
	for _, m := range vm.journal.Load().Spec.Pod.Containers {
		if !bound[m.Guest] {
			guests = append(guests, m.Guest)
		}
	}
	return guests
}

// checkResume refuses what does not say of each container whether it runs.
func checkResume(j *journal.Journal, r *journal.Resume) error {
	if j.Spec.Pod == nil {
		return nil
	}
	var unknown []string
	for _, m := range j.Spec.Pod.Containers {
		if r.Member(m.Guest) == nil {
			unknown = append(unknown, m.Name)
		}
	}
	switch {
	case len(unknown) > 0:
		return fmt.Errorf("its resume information says nothing of containers %s: %w", strings.Join(unknown, ", "),
			errdefs.ErrDataLoss)
	case len(r.Members) != len(j.Spec.Pod.Containers): // each is named once
		return fmt.Errorf("its resume information has %d containers, its Spec %d: %w", len(r.Members),
			len(j.Spec.Pod.Containers), errdefs.ErrDataLoss)
	}
	return nil
}
