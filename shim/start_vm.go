package shim

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/api/events"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/guest/client"
	"godwit.dev/godwit/internal/retry"
	"godwit.dev/godwit/shim/bundle"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/starts"
	"godwit.dev/godwit/shim/stdio"
	"godwit.dev/godwit/shim/steps"
	"godwit.dev/godwit/snapshot/stream"
	"godwit.dev/godwit/vmm"
)

// undoBound is how long taking back a failed Start may take. A variable for the tests.
var undoBound = 30 * time.Second

// start boots the VM, or resumes a restored one, and lets init run. A restored VM
// that runs already has been resumed: that is success. After a failure the task has
// ended and holds nothing but its name.
func (t *Task) start(caller context.Context) error {
	vm := t.vm
	r := &starting{vm: vm, task: t}
	var err error
	if r.committed, err = r.checkCommitted(caller); err != nil {
		return fmt.Errorf("start task %s: %w", vm.id, err)
	}
	ctx, cancel := abortable(context.WithoutCancel(caller), r)
	defer cancel()
	r.detach = context.AfterFunc(caller, cancel)
	defer r.release()
	vm.mu.Lock()
	if vm.origin.restored && vm.state == Running {
		vm.mu.Unlock()
		return nil
	}
	vm.mu.Unlock()
	err = r.admit(ctx)
	vm.mu.Lock()
	if err == nil {
		err = vm.setState(Starting)
	}
	if err == nil {
		err = t.setState(TaskStarting)
	}
	r.opened = vm.journal.Load().Generation
	if err == nil {
		t.abortStart, t.startOver = cancel, make(chan struct{})
	}
	vm.mu.Unlock()
	if err != nil {
		return err
	}
	defer close(t.startOver)
	begun := time.Now()
	err = steps.Run(ctx, r.takeUndo(), undoBound, r.steps())
	vm.observe(time.Since(begun), err != nil, r.address)
	if err != nil {
		err = sayLate(ctx, r, err)
		err = errors.Join(fmt.Errorf("start task %s: %w", vm.id, err), r.giveUp(ctx, err))
		vm.log.Error("start task", "error", err)
		return err
	}
	r.startTraffic()
	r.keepDisk()
	r.cloning.request()
	if err := t.bundle.Hooks.Run(ctx, bundle.Poststart, t.hookState(specs.StateRunning)); err != nil {
		vm.log.Warn("run hooks", "error", err)
	}
	return nil
}

// starting is one Start.
type starting struct {
	vm        *VM
	task      *Task
	streams   *stdio.Streams
	execs     []*process // that came along, until the task runs
	members   []resumedMember
	flows     func()          // says that the streams of a task that runs flow too; nil: it does not run
	readdress bool            // the guest had other addresses
	plugs     bool            // NICs are plugged in after the restore
	filling   *filling        // of a lazy wake
	written   *stream.Written // of a live move: since the snapshot of the page table; nil: that is not known
	armed     bool            // what the VM writes is noted from its first instruction on
	address   starts.Address
	announced bool   // where the VM is
	ran       bool   // the guest may have executed something
	opened    uint64 // the generation under which the wake was opened
	committed uint64 // of a move: the one under which the VM runs

	cloning *cloning // of a boot
	woken   woken    // what a restored guest says of itself
	kernel  string   // of a copy: its kernel's release, and which boot it is
	boot    string

	abort  context.CancelFunc
	detach func() bool  // from the caller's context; false: that has ended
	late   *time.Timer  // aborts what goes on without the caller
	until  atomic.Int64 // Unix ns before which it does not: see extend
}

func (s *starting) release() {
	s.detach()
	if s.late != nil {
		s.late.Stop()
	}
}

// run makes the task a running one, unless somebody has killed it up to now.
func (s *starting) run(ctx context.Context, _ *steps.Undo) error {
	vm := s.vm
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := vm.setState(Running); err != nil {
		return err
	}
	if err := errors.Join(s.task.setState(TaskRunning), s.runMembers()); err != nil {
		return err
	}
	vm.events.Send(&events.TaskStart{ContainerID: s.task.id, Pid: s.task.pid()})
	s.addExecs()
	s.flows = vm.call() // a capture that came in now would keep them from flowing
	return nil
}

func (s *starting) steps() []steps.Step {
	boot := []steps.Step{
		steps.New("open stdio", s.open),
		steps.New("attach network", s.skipIfArrived(s.attach)),
	}
	if !s.vm.spec().HasAgent() {
		return append(boot, s.diskSteps()...)
	}
	if s.vm.origin.restored {
		return append(boot, []steps.Step{
			steps.New("begin fill", s.beginFill),
			steps.New("start VMM", s.skipIfArrived(s.launch)),
			steps.New("load state", s.skipIfArrived(s.load)),
			steps.New("commit", s.commit),
			steps.New("resume", s.resumeGuest),
			steps.New("leave it alone", s.deferAgent),
			steps.New("meet guest", s.connect),
			steps.New("prove the guest", s.verifyGuest),
			steps.New("plug NICs in", s.plug),
			steps.New("run", s.run),
		}...)
	}
	s.cloning = &cloning{start: s}
	return append(boot, []steps.Step{
		steps.New("copy template", s.cloning.clone),
		steps.New("start VMM", s.skipIfCloned(s.launch)),
		steps.New("boot", s.skipIfCloned(s.resumeGuest)),
		steps.New("meet guest", s.skipIfCloned(s.connect)),
		steps.New("set guest up", s.bounded(s.setup)),
		steps.New("start init", s.bounded(s.init)),
		steps.New("run", s.run),
	}...)
}

// skipIfCloned is a step of a boot, which a copy has taken already.
func (s *starting) skipIfCloned(fn func(context.Context, *steps.Undo) error) func(context.Context, *steps.Undo) error {
	return func(ctx context.Context, u *steps.Undo) error {
		if s.vm.vmm.copied() {
			return nil
		}
		return fn(ctx, u)
	}
}

// bounded bounds a step that asks the guest: one that has said hello may still fall silent.
func (s *starting) bounded(fn func(context.Context, *steps.Undo) error) func(context.Context, *steps.Undo) error {
	return func(ctx context.Context, u *steps.Undo) error {
		bound := time.Duration(s.vm.host.Config.Timeouts.Boot)
		soon, cancel := context.WithTimeout(ctx, bound)
		defer cancel()
		err := fn(soon, u)
		s.cloning.discardUnresponsive(ctx, soon, err)
		if err != nil && soon.Err() != nil && ctx.Err() == nil {
			err = fmt.Errorf("the guest did not answer within %v (timeouts.boot): %w", bound, err)
		}
		return err
	}
}

func (s *starting) open(context.Context, *steps.Undo) (err error) {
	vm := s.vm
	vm.mu.Lock()
	s.task.init.stdio = vm.journal.Load().Stdio // a snapshot may have said that there is no output
	vm.mu.Unlock()
	if s.streams, err = s.task.openStreams(s.task.id, s.task.init.stdio); err == nil {
		s.offerFifos()
		err = s.openMembers(func(t *Task) (*stdio.Streams, error) { return t.openStreams(t.id, t.init.stdio) })
	}
	return err
}

// resumeGuest lets the guest execute, and talk, unless it has addresses to give up first. A VM that is committed to
// this node has no other: while the host lacks what that takes, it is tried again.
func (s *starting) resumeGuest(ctx context.Context, _ *steps.Undo) error {
	err := resumeOnce(ctx, s)
	for s.vm.origin.restored && scarce(err) {
		s.vm.log.Warn("wake: the host lacks descriptors or memory; it is tried again", "error", err)
		if retry.Sleep(ctx, resumeRetry); ctx.Err() != nil {
			break
		}
		err = resumeOnce(ctx, s)
	}
	if err == nil && s.vm.origin.restored {
		s.vm.mu.Lock()
		s.vm.origin.resumed = time.Now()
		s.vm.mu.Unlock()
	}
	if err == nil && s.vm.origin.restored && s.vm.nic.wiring() != nil && !s.plugs && !s.readdress {
		s.announced = true
		go s.vm.nic.announce(s.vm.life) // its peers send to where it was
	}
	return err
}

// resumeOnce is one try of resumeGuest.
func resumeOnce(ctx context.Context, s *starting) error {
	if nics := s.vm.nic.wiring(); nics != nil {
		var err error
		switch {
		case s.plugs && s.vm.spec().Recycles(): // it has no NIC yet
		case s.readdress:
			err = nics.Mute(ctx)
		default:
			err = nics.Up(ctx)
		}
		if err != nil {
			return err
		}
	}
	err := s.vm.machine.Resume(ctx)
	s.ran = s.ran || !errors.Is(err, vmm.ErrNotResumed) // a shim before this one may have let it run
	return err
}

func (s *starting) connect(ctx context.Context, u *steps.Undo) error {
	var first FirstCall
	switch {
	case s.cloning.loading():
		first = s.cloning.firstCall
	case s.vm.origin.restored:
		first = func(ctx context.Context, a agentv1.AgentService) error { return s.woken.meet(ctx, s, a) }
	}
	a, err := s.dialUntilFilled(ctx, func(ctx context.Context) (Agent, error) {
		return s.vm.dial(ctx, s.vm.machine, s.vm.journal.Load().Resume.Init, first)
	})
	if err != nil {
		return err
	}
	s.vm.mu.Lock()
	s.vm.agent = a
	s.vm.mu.Unlock()
	u.Add("close agent", func(context.Context) error { return a.Close() })
	return nil
}

func (s *starting) setup(ctx context.Context, _ *steps.Undo) error {
	agent, sp := s.vm.agent, s.vm.spec()
	if !s.vm.vmm.copied() { // whose first call has told
		info, err := agent.Info(ctx, &agentv1.InfoRequest{})
		if err != nil {
			return err
		}
		s.kernel, s.boot = info.GetKernel(), info.GetBootId()
	}
	err := s.setupGuest(ctx, sp)
	if err != nil {
		return err
	}
	if len(sp.NICs) > 0 {
		if _, err := agent.ConfigureNetwork(ctx, &agentv1.ConfigureNetworkRequest{Nics: agentNICs(sp.NICs)}); err != nil {
			return err
		}
	}
	return s.vm.write(func(j *journal.Journal) {
		sp := j.Spec.Clone()
		sp.Kernel.Version = s.kernel
		j.Spec, j.BootID = sp, s.boot
		if s.vm.vmm.copied() {
			j.Restored = &journal.Restored{Mode: starts.Clone}
		}
	})
}

// setupGuest makes the container, or what the containers of a pod share.
func (s *starting) setupGuest(ctx context.Context, sp *spec.Spec) error {
	agent := s.vm.agent
	if sp.Pod != nil {
		return s.vm.pod.setup(ctx, agent, sp)
	}
	req, err := bundle.Setup(sp)
	if err != nil {
		return err
	}
	req.Copies = s.task.bundle.Copies.Mounts()
	if _, err := agent.Setup(ctx, req); err != nil {
		return err
	}
	return copyFiles(ctx, agent, "", s.task.bundle.Copies)
}

func (s *starting) init(ctx context.Context, _ *steps.Undo) error {
	if err := s.task.run(ctx, s.task.init, s.streams, client.Offsets{}, func() {}); err != nil {
		return err
	}
	s.task.resize(ctx, s.task.init)
	return nil
}
