package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/containerd/containerd/api/events"
	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/internal/failpoint"
	"godwit.dev/godwit/shim/bundle"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/proc"
	"godwit.dev/godwit/shim/sandboxprocess"
	"godwit.dev/godwit/shim/stdio"
	"godwit.dev/godwit/shim/steps"
)

// podPoint is the kind of points at which a test of crashes stops a pod's shim.
const podPoint = "pod"

// memberCreation is what the steps of one Create of a container tell each other.
type memberCreation struct {
	vm     *VM
	task   *Task
	req    *taskapi.CreateTaskRequest
	bundle *bundle.Bundle
	image  *DiskSet    // as the host has it
	member spec.Member // as the guest has it, once it is planned
	over   func()      // of the call that changes the VM
	within State       // of the VM: Running, or Created for one that is restored
}

// createMember makes a container in the pod's VM, which runs.
func (s *Service) createMember(ctx context.Context, vm *VM, r *taskapi.CreateTaskRequest) (*taskapi.CreateTaskResponse,
	error) {
	ctx, cancel := context.WithTimeout(ctx, memberBound)
	defer cancel()
	t, within, err := s.addMember(vm, r.GetID(), cancel)
	if err != nil {
		return nil, toGRPC(fmt.Errorf("create task %s: %w", r.GetID(), err))
	}
	defer close(t.created)
	pid, err := (&memberCreation{vm: vm, task: t, req: r, over: func() {}, within: within}).run(ctx)
	if err != nil {
		s.leavePod(t)
		vm.log.Error("create task", "task", t.id, "error", err)
		return nil, toGRPC(implemented(fmt.Errorf("create task %s: %w", t.id, err)))
	}
	return &taskapi.CreateTaskResponse{Pid: pid}, nil
}

// addMember enters a task of that id, which is being created from here on. abandon ends its Create.
func (s *Service) addMember(vm *VM, id string, abandon func()) (*Task, State, error) {
	if !vm.isPod() {
		return nil, "", fmt.Errorf("this shim has task %s: %w", vm.owner.id, errdefs.ErrAlreadyExists)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tasks[id] != nil {
		return nil, "", errdefs.ErrAlreadyExists
	}
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if err := vm.pod.takesMembers(); err != nil {
		return nil, "", err
	}
	t := vm.newTask(id)
	t.member = &member{t: t, abandon: abandon}
	s.tasks[id] = t
	return t, vm.state, t.setState(TaskCreating)
}

// removeMember forgets a task that is deleted, or was never made.
func (s *Service) removeMember(t *Task) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t.vm.mu.Lock()
	defer t.vm.mu.Unlock()
	delete(s.tasks, t.id)
	delete(t.vm.tasks, t.id)
}

// takesMembers says whether a container can be made in the VM now. vm.mu is held.
func (p *pod) takesMembers() error {
	vm := p.vm
	if err := vm.mutable(); err != nil {
		return err
	}
	if p.restores() {
		return nil
	}
	if vm.state != Running || vm.owner.init.exited {
		return fmt.Errorf("the VM of pod %s is %s, not running: %w", vm.id, vm.state, errdefs.ErrFailedPrecondition)
	}
	return nil
}

func (c *memberCreation) run(ctx context.Context) (uint32, error) {
	t, vm := c.task, c.vm
	defer func() { c.over() }()
	if err := steps.Run(ctx, new(steps.Undo), undoBound, c.steps()); err != nil {
		return 0, err
	}
	for _, note := range c.bundle.Notes {
		vm.log.Info("bundle", "task", t.id, "note", note)
	}
	vm.mu.Lock()
	defer vm.mu.Unlock()
	return t.pid(), nil
}

// tell makes the container one that was created, unless the pod has ended meanwhile, or the client has gone: what is
// not told of is taken back.
func (c *memberCreation) tell(ctx context.Context, _ *steps.Undo) error {
	t, vm := c.task, c.vm
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if vm.state != c.within { // and ended it with the others, but for this one
		return fmt.Errorf("the VM of pod %s is %s: %w", vm.id, vm.state, errdefs.ErrFailedPrecondition)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := t.setState(TaskCreated); err != nil {
		return err
	}
	vm.events.Send(&events.TaskCreate{
		ContainerID: t.id, Bundle: c.req.GetBundle(), Rootfs: c.req.GetRootfs(), Pid: t.pid(),
		IO: &events.TaskIO{Stdin: c.req.GetStdin(), Stdout: c.req.GetStdout(), Stderr: c.req.GetStderr(),
			Terminal: c.req.GetTerminal()},
	})
	return nil
}

// steps of a container that is made, or of one that the snapshot of a restored pod has.
func (c *memberCreation) steps() []steps.Step {
	hooks := steps.New("run hooks", func(ctx context.Context, u *steps.Undo) error {
		return runCreateHooks(ctx, u, c.task)
	})
	if c.within == Created {
		return []steps.Step{
			steps.New("read bundle", c.load),
			steps.New("find container in snapshot", c.bind),
			steps.New("start sandbox process", c.hold),
			hooks,
			steps.New("tell", c.tell),
		}
	}
	makes := func(name string, do func(context.Context, *steps.Undo) error) steps.Step {
		return steps.New(name, func(ctx context.Context, u *steps.Undo) error {
			if c.task.member.ended != nil { // the guest has nothing of it
				return nil
			}
			return do(ctx, u)
		})
	}
	return []steps.Step{
		steps.New("read bundle", c.load),
		steps.New("find end in snapshot", c.bindLate),
		makes("make image disk", c.prepare),
		makes("plug image disk in", c.plug),
		steps.New("start sandbox process", c.hold),
		makes("make volumes", c.volumes),
		makes("add container", c.add),
		hooks,
		steps.New("tell", c.tell),
	}
}

func (c *memberCreation) load(context.Context, *steps.Undo) (err error) {
	vm, t := c.vm, c.task
	if c.req.GetCheckpoint() != "" {
		return fmt.Errorf("checkpoint %s: a container of a pod is not restored alone: %w", c.req.GetCheckpoint(),
			errdefs.ErrNotImplemented)
	}
	c.bundle, err = bundle.LoadMember(c.req.GetBundle(), vm.namespace, t.id, vm.host.Config, vm.journal.Load().Bundle)
	if err != nil {
		return err
	}
	if err := c.bundle.BelongsTo(vm.spec(), vm.owner.id); err != nil {
		return err
	}
	if err := errors.Join(c.bundle.MapLayers(c.req.GetRootfs()), c.checkMapped()); err != nil {
		return err
	}
	m := c.bundle.Member
	data, err := json.Marshal(m.Container.OCI.Process)
	if err != nil {
		return err
	}
	c.member = m.Container
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if c.member.PID, err = vm.pod.pidNamespace(m); err != nil {
		return err
	}
	t.bundle, t.member.name = c.bundle, m.Container.Name
	t.init = t.newProcess("", stdio.URIs{
		Stdin: c.req.GetStdin(), Stdout: c.req.GetStdout(), Stderr: c.req.GetStderr(), Terminal: c.req.GetTerminal(),
	}, data)
	return nil
}

// pidNamespace says whose pid namespace of the guest a container joins, for CRI names that of the process which a task
// shows; empty: it has one of its own. vm.mu is held.
func (p *pod) pidNamespace(m *bundle.Member) (string, error) {
	vm := p.vm
	if owner := int(vm.owner.pid()); m.Holder != 0 && m.Holder != owner {
		return "", fmt.Errorf("linux.namespaces: they are of process %d, and the sandbox of pod %s is %d: %w", m.Holder,
			vm.id, owner, errdefs.ErrInvalidArgument)
	}
	if m.PIDHolder == 0 {
		return "", nil
	}
	for _, t := range vm.tasks {
		if int(t.pid()) == m.PIDHolder && t.guest != "" {
			return t.guest, nil
		}
	}
	return "", fmt.Errorf("linux.namespaces pid: %s is not the namespace of a task of pod %s: %w", m.PIDPath, vm.id,
		errdefs.ErrInvalidArgument)
}

// hold starts the process whose pid the task shows, in the network namespace of the pod.
func (c *memberCreation) hold(ctx context.Context, _ *steps.Undo) error {
	vm, t := c.vm, c.task
	return vm.host.Hold(ctx, sandboxprocess.Namespace{Path: vm.journal.Load().NetNS}, func(id proc.ID) error {
		vm.mu.Lock()
		t.member.holder = id
		vm.mu.Unlock()
		return vm.write(func(j *journal.Journal) { j.SetHolder(t.guest, id) })
	})
}

// endHolder ends the sandbox process of a member.
func endHolder(ctx context.Context, id proc.ID) error {
	if id.PID == 0 {
		return nil
	}
	return id.WithBoot(isSandboxProcess).Kill(ctx)
}

// add makes the container in the guest, where it waits for its Start.
func (c *memberCreation) add(ctx context.Context, _ *steps.Undo) error {
	vm, agent, sp := c.vm, c.vm.guest(), c.vm.spec()
	m := sp.Pod.Member(c.task.guest)
	setup, err := bundle.MemberSetup(sp, m)
	if err != nil {
		return err
	}
	setup.Copies = c.bundle.Copies.Mounts()
	err = failpoint.Record(podPoint, "AddContainer", func() error {
		_, err := agent.AddContainer(ctx, &agentv1.AddContainerRequest{
			Container: m.Guest, Setup: setup, Pid: m.PID, Volumes: volumeMounts(sp.Pod, m.Mounts), Devices: devicesOf(sp, m),
			OpenDevices: bundle.AnyDevice(m.OCI.Process),
		})
		return err
	})
	if err == nil {
		err = copyFiles(ctx, agent, m.Guest, c.bundle.Copies)
	}
	if err == nil {
		err = c.copyTermination(ctx, agent)
	}
	vm.log.Debug("container added", "container", m.Guest, "error", err)
	return err
}

// removeContainer has the guest free what it has of a container; one that it does not know is gone.
func removeContainer(ctx context.Context, agent Agent, guest string) error {
	err := failpoint.Record(podPoint, "RemoveContainer", func() error {
		_, err := agent.RemoveContainer(ctx, &agentv1.RemoveContainerRequest{Container: guest})
		return err
	})
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}
