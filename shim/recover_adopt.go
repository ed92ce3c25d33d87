package shim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/guest/client"
	"godwit.dev/godwit/internal/retry"
	"godwit.dev/godwit/shim/cgroup"
	"godwit.dev/godwit/shim/events"
	"godwit.dev/godwit/shim/stdio"
)

// Adopt takes over the VM of a shim that died while an operation held it, and serves
// the machine service until the VM ends: by a release, or, when an abort has let it run
// on without a task that containerd knows, by its own end or by another operation.
func Adopt(ctx context.Context, host *Host, namespace, id string) error {
	dir := host.Config.VMDir(namespace, id)
	if j, err := take(dir, forgotten); err == nil {
		if err := cleanUp(ctx, host, dir, j); err != nil {
			return fmt.Errorf("clean up after VM %s/%s: %w", namespace, id, err)
		}
		return nil
	}
	vm, err := adopted(ctx, host, namespace, id)
	if err != nil {
		return fmt.Errorf("adopt VM %s/%s: %w", namespace, id, err)
	}
	defer vm.events.Close()
	switch vm.noted().Phase {
	case Fenced:
		return vm.answerForFence(ctx)
	case Released:
		return reclaim(ctx, host, vm.dir, vm.noted())
	}
	if err := vm.serve(func() (*VM, error) { return vm, nil }); err != nil {
		return fmt.Errorf("adopt VM %s/%s: %w", namespace, id, err)
	}
	vm.backOut()
	vm.wakeOn(ctx)
	if err := vm.over(ctx); err != nil {
		return errors.Join(err, vm.unserve())
	}
	// The one who ordered the end gets its answer first.
	retry.Sleep(ctx, answerWait)
	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoBound)
	defer cancel()
	j := vm.noted()
	if mine, err := vm.mine(); err != nil || !mine {
		return errors.Join(err, vm.unserve())
	}
	return errors.Join(vm.unserve(), reclaim(bound, host, vm.dir, j), vm.disownAdopted(bound, j))
}

// backOut ends a live move whose source's shim died before the vote: the connection died
// with it, and until the vote the source is its own master.
func (vm *VM) backOut() {
	j := vm.noted()
	if c := vm.op.capture; c != nil && j.Move && j.Phase == Sending {
		if err := c.abort(Captured); err != nil {
			vm.log.Error("take a live move back", "error", err)
		}
	}
}

const (
	answerWait   = time.Second            // for who ordered the end to hear of it
	owedInterval = 100 * time.Millisecond // between two looks whether an operation still needs the VM
)

// over waits for the end of the VM, and of the operation that has its snapshot.
func (vm *VM) over(ctx context.Context) error {
	select {
	case <-vm.owner.init.done:
	case <-ctx.Done():
	}
	for ctx.Err() == nil && vm.owed() {
		retry.Sleep(ctx, owedInterval)
	}
	return ctx.Err()
}

func (vm *VM) owed() bool {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	p := vm.journal.Phase
	return vm.op.capture != nil && vm.journal.Digest != "" && (p == Sending || p == Prepared)
}

// mine reports whether the journal still names this process: a Create may have taken
// the VM over, and what lies there is another task's then.
func (vm *VM) mine() (bool, error) {
	unlock, err := lockDir(filepath.Dir(vm.dir))
	if err != nil {
		return false, err
	}
	defer unlock()
	now, err := loadJournal(vm.dir)
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	return err == nil && now.Shim == vm.noted().Shim, err
}

// disownAdopted gives up a VM that went back to this node and then ended.
func (vm *VM) disownAdopted(ctx context.Context, j *Journal) error {
	if j.Phase != Own {
		return nil
	}
	return vm.disown(ctx, j.Generation, j.Spec.UID)
}

// adoptable wants a VM whose shim is dead and that is not containerd's to end: an
// operation holds it, or held it, or wakes it, or an earlier successor ran it. It marks
// the journal.
func adoptable(j *Journal) error {
	alive, err := j.shim().Alive()
	if err != nil {
		return fmt.Errorf("its shim: %w", err)
	}
	wakes, err := j.wakes()
	if err != nil {
		return err
	}
	switch {
	case alive:
		return fmt.Errorf("its shim, process %d, is alive: %w", j.Shim.PID, errdefs.ErrAlreadyExists)
	case j.Phase == Own && !j.Adopted && !wakes:
		return fmt.Errorf("no operation holds it (%s): %w", j.Phase, errdefs.ErrFailedPrecondition)
	case j.Process == nil && !j.Phase.destination() && j.Phase != Released:
		return fmt.Errorf("it has no VMM: %w", errdefs.ErrNotFound)
	}
	j.Adopted = true
	return nil
}

func adopted(ctx context.Context, host *Host, namespace, id string) (*VM, error) {
	dir := host.Config.VMDir(namespace, id)
	j, err := take(dir, adoptable)
	if err != nil {
		return nil, err
	}
	log := slog.Default().With("vm", namespace+"/"+id)
	vm := newVM(ctx, slog.Default(), events.NewQueue(ctx, nowhere{}, log), namespace, id)
	vm.host, vm.dir, vm.journal, vm.adopted = host, dir, j, true
	vm.owner.init, vm.owner.state = vm.owner.newProcess("", j.Stdio, nil), TaskRunning
	if j.Phase == Fenced || j.Phase == Released {
		vm.state, vm.owner.state = Stopped, TaskStopped
		return vm, nil
	}
	if err := vm.openNICs(ctx, j); err != nil {
		return nil, err
	}
	if err := cgroup.Join(j.Cgroup, os.Getpid()); err != nil {
		log.Warn("enter the cgroup of an adopted VM", "error", err)
	}
	wakes, err := j.wakes()
	switch {
	case err != nil:
		return nil, err
	case wakes:
		return vm, vm.takeOver(ctx, j)
	case j.Phase == Own:
		return vm, vm.resumeOwn(ctx, j)
	}
	return vm, vm.resumeHold(ctx, j)
}

// openNICs takes over those of a VMM that lives. A dead one's namespace may be gone, after a reboot of
// the host.
func (vm *VM) openNICs(ctx context.Context, j *Journal) error {
	if len(j.Links) == 0 {
		return nil
	}
	alive, err := j.vmm().Alive()
	if !alive || err != nil {
		return err
	}
	netns, err := j.netns()
	if err != nil {
		return err
	}
	if vm.nic.attached, err = vm.host.Network.Open(ctx, netns, j.Links); err != nil {
		return err
	}
	return vm.serveDHCP(vm.nic.attached, j)
}

// resumeOwn takes over a VM that runs on after an abort and whose last successor died,
// perhaps before it had let the VM go on.
func (vm *VM) resumeOwn(ctx context.Context, j *Journal) error {
	id := vm.vmmID()
	vm.machine, vm.state = newStopped(vm, id, *j.Process), Running
	alive, err := id.Alive()
	if err != nil {
		return err
	}
	if !alive {
		vm.end(ctx, killed, time.Now())
		return nil
	}
	vm.fillAgain()
	vm.postcopy.halting.Lock() // the end of a fill stops the VMM that this one takes over
	up, err := vm.wakeMachine(ctx)
	vm.postcopy.halting.Unlock()
	if err != nil {
		return err
	}
	met := vm.rejoin(ctx)
	if err := vm.restoreNICs(ctx); err != nil {
		vm.log.Error("plug NICs in again; it is tried while the VM runs", "error", err)
	}
	vm.flow()
	vm.mend("set links up", up, func(ctx context.Context) error { return vm.nic.attached.Up(ctx) })
	vm.mend("meet guest", met, vm.meetAgain)
	go vm.slim()
	return nil
}

// resumeHold puts the VM where the journal says it is: voted, with the VMM stopped, or
// with a capture whose maker died, which is aborted. A VM that stands still for one waits as long
// for its controller as that shim would have.
func (vm *VM) resumeHold(ctx context.Context, j *Journal) error {
	ref := &machinev1.Ref{Operation: j.Operation, Attempt: j.Attempt, Generation: j.Generation}
	c := &capture{vm: vm, ref: ref, done: make(chan struct{}), digest: j.Digest, resp: &machinev1.CaptureResponse{Digest: j.Digest}}
	c.inherited = time.Duration(j.Patience) * time.Millisecond
	c.ctx, c.cancel = context.WithCancel(ctx)
	c.deadline = time.AfterFunc(c.silenceBound(), func() { c.expire() })
	c.deadline.Stop() // until it is known that a VM stands still
	close(c.done)
	vm.op.capture = c
	id := j.vmm()
	if j.Phase == Prepared {
		// It is stopped already: this verifies it. One that is gone runs even less.
		if err := unlessGone(id, id.Stop(ctx)); err != nil {
			return err
		}
		vm.machine, vm.state = newStopped(vm, id, *j.Process), Voted
		return nil
	}
	alive, err := id.Alive()
	if err != nil {
		return err
	}
	if !alive { // it died with its shim: an end like any other, unless the snapshot is complete
		vm.machine, vm.state = newStopped(vm, id, *j.Process), Captured
		if j.Digest == "" {
			vm.end(ctx, killed, time.Now())
		}
		return nil
	}
	// A vote that was cut off may have stopped it, and nobody was told: the VM is paused still.
	if err := unlessGone(id, id.Continue()); err != nil {
		return err
	}
	bound, cancel := context.WithTimeout(ctx, time.Duration(vm.host.Config.Timeouts.Abort))
	defer cancel()
	driver, err := vm.driver(bound)
	if err != nil {
		return err
	}
	m, err := driver.Adopt(bound, *j.Process)
	if err != nil {
		return err
	}
	vm.machine, vm.state = m, Captured
	c.deadline.Reset(c.silenceBound())
	go vm.guard()
	return nil
}

// rejoin finds the guest's init again after an adopted VM runs on: its exit is the
// task's.
func (vm *VM) rejoin(ctx context.Context) error {
	vm.mu.Lock()
	machine, known := vm.machine, vm.owner.init.started
	vm.mu.Unlock()
	if known {
		return nil
	}
	agent, err := vm.dial(ctx, machine, client.Offsets{}, nil)
	if err != nil {
		return err
	}
	all, err := agent.Processes(ctx, &agentv1.ProcessesRequest{})
	if err != nil {
		return errors.Join(err, agent.Close())
	}
	st := vm.owner.reopenStreams()
	vm.mu.Lock()
	defer vm.mu.Unlock()
	vm.agent = agent
	for _, p := range all.GetProcesses() {
		if p.GetId() == "" {
			vm.owner.init.started, vm.owner.init.pump = true, stdio.NewPump("", st, client.Offsets{
				Stdin: p.GetStdinOffset(), Stdout: p.GetStdoutOffset(), Stderr: p.GetStderrOffset(),
			})
		}
	}
	return nil
}

// nowhere takes the events of a task that containerd does not know any more.
type nowhere struct{}

func (nowhere) Publish(context.Context, string, any) error { return nil }
