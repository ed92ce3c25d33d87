package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/containerd/containerd/api/events"
	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/guest"
	"godwit.dev/godwit/network"
	"godwit.dev/godwit/shim/bundle"
	"godwit.dev/godwit/vmm"
)

// undoBound is how long taking back a failed Start may take.
const undoBound = 30 * time.Second

// startInit boots the VM, or thaws a restored one, and lets init run. A restored VM
// that runs already has been thawed: that is success. After a failure the task has
// ended and holds nothing but its name.
func (vm *VM) startInit(caller context.Context) error {
	ctx, cancel := context.WithCancel(context.WithoutCancel(caller))
	defer cancel()
	r := &starting{vm: vm, abort: cancel, detach: context.AfterFunc(caller, cancel)}
	defer r.release()
	vm.mu.Lock()
	if vm.restored && vm.state == Running {
		vm.mu.Unlock()
		return nil
	}
	err := vm.to(Starting)
	r.opened = vm.journal.Generation
	if err == nil {
		vm.abortStart, vm.startOver = cancel, make(chan struct{})
	}
	vm.mu.Unlock()
	if err != nil {
		return err
	}
	defer close(vm.startOver)
	begun := time.Now()
	err = runSteps(ctx, new(undo), undoBound, r.steps())
	vm.observe(time.Since(begun), err != nil)
	if err != nil {
		err = errors.Join(fmt.Errorf("start task %s: %w", vm.id, err), r.giveUp(ctx, err))
		vm.log.Error("start task", "error", err)
		return err
	}
	vm.flow()
	go vm.guard()
	if err := vm.bundle.Hooks.Run(ctx, bundle.Poststart, vm.hookState(specs.StateRunning)); err != nil {
		vm.log.Warn("run hooks", "error", err)
	}
	return nil
}

// starting is one Start.
type starting struct {
	vm        *VM
	streams   *streams
	readdress bool   // the guest had other addresses
	ran       bool   // the guest may have executed something
	opened    uint64 // the generation under which the wake was opened

	abort  context.CancelFunc
	detach func() bool // from the caller's context; false: that has ended
	late   *time.Timer // aborts what goes on without the caller
}

func (s *starting) release() {
	s.detach()
	if s.late != nil {
		s.late.Stop()
	}
}

// run makes the task a running one, unless somebody has killed it up to now.
func (s *starting) run(ctx context.Context, _ *undo) error {
	vm := s.vm
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := vm.to(Running); err != nil {
		return err
	}
	vm.events.send(&events.TaskStart{ContainerID: vm.id, Pid: vm.pid()})
	return nil
}

func (s *starting) steps() []step {
	boot := []step{
		{"open stdio", s.open},
		{"attach network", s.attach},
		{"start VMM", s.launch},
	}
	if s.vm.restored {
		return append(boot, []step{
			{"load state", s.load},
			{"commit", s.commit},
			{"thaw", s.thaw},
			{"meet guest", s.meet},
			{"prove the guest", s.prove},
			{"run", s.run},
		}...)
	}
	return append(boot, []step{
		{"boot", s.thaw},
		{"meet guest", s.meet},
		{"set guest up", s.soon(s.setup)},
		{"start init", s.soon(s.init)},
		{"run", s.run},
	}...)
}

// soon bounds a step that asks the guest: one that has said hello may still fall silent.
func (s *starting) soon(fn func(context.Context, *undo) error) func(context.Context, *undo) error {
	return func(ctx context.Context, u *undo) error {
		bound := time.Duration(s.vm.host.Config.Timeouts.Boot)
		soon, cancel := context.WithTimeout(ctx, bound)
		defer cancel()
		err := fn(soon, u)
		if err != nil && soon.Err() != nil && ctx.Err() == nil {
			err = fmt.Errorf("the guest did not answer within %v (timeouts.boot): %w", bound, err)
		}
		return err
	}
}

func (s *starting) open(context.Context, *undo) (err error) {
	s.streams, err = s.vm.open(s.vm.id, s.vm.init.stdio)
	return err
}

// open is openStreams for a process of the VM. A logging program outlives the task: it
// is no part of the task's cgroup.
func (vm *VM) open(id string, stdio Stdio) (*streams, error) {
	st, err := openStreams(vm.namespace, id, stdio)
	if err != nil {
		return nil, err
	}
	if st.logger != 0 {
		if err := leave(vm.noted().Cgroup, st.logger); err != nil {
			vm.log.Warn("move logger out of the task's cgroup", "error", err)
		}
	}
	return st, nil
}

// attach reads what CNI has made in the namespace and puts a tap behind each interface.
// A namespace without interfaces, or no namespace, leaves the guest with loopback.
func (s *starting) attach(ctx context.Context, u *undo) error {
	vm, j := s.vm, s.vm.noted()
	var links []network.Link
	if j.NetNS != "" {
		var err error
		if links, err = vm.host.Network.Read(ctx, j.NetNS); err != nil {
			return err
		}
	}
	if len(links) == 0 {
		if len(j.Spec.NICs) > 0 {
			return fmt.Errorf("the VM has %d NICs, its namespace no interface: wake it with godwit wake, or run it with a network (ctr run --cni): %w", len(j.Spec.NICs), errdefs.ErrFailedPrecondition)
		}
		vm.networkIs("loopback")
		return nil
	}
	links, changed, err := s.describe(links)
	if err != nil {
		return err
	}
	s.readdress = changed
	err = vm.write(func(j *Journal) {
		sp := j.Spec.Clone()
		sp.NICs = sp.NICs[:0]
		for _, l := range links {
			sp.NICs = append(sp.NICs, l.NIC)
		}
		j.Spec, j.Links = sp, links
	})
	if err != nil {
		return err
	}
	owner := network.Owner{Node: vm.host.Config.NodeID(), VM: vm.namespace + "/" + vm.id, Generation: j.Generation, Attempt: j.Attempt}
	a, err := vm.host.Network.Attach(ctx, j.NetNS, owner, links)
	if err != nil {
		return err
	}
	vm.mu.Lock()
	vm.nics = a
	vm.mu.Unlock()
	u.add("detach network", func(ctx context.Context) error {
		vm.mu.Lock()
		vm.nics = nil
		vm.mu.Unlock()
		return errors.Join(a.Close(), detach(ctx, vm.host, j, links))
	})
	vm.networkIs("cni")
	return nil
}

// describe makes the NICs of a new VM from its interfaces, and gives those of a
// restored VM the addresses found here.
func (s *starting) describe(links []network.Link) ([]network.Link, bool, error) {
	links = slices.Clone(links)
	if s.vm.restored {
		nics, changed, err := network.Merge(s.vm.spec().NICs, links)
		if err != nil {
			return nil, false, err
		}
		for i := range links {
			links[i].NIC = nics[i]
		}
		return links, changed, nil
	}
	for i := range links {
		links[i].NIC.ID, links[i].NIC.Slot = fmt.Sprintf("net%d", i), firstNICSlot+i
	}
	return links, false, nil
}

func (s *starting) launch(ctx context.Context, u *undo) (err error) {
	vm := s.vm
	files := &openFiles{}
	defer files.close()
	cfg, err := vm.vmmConfig(files)
	if err != nil {
		return err
	}
	vm.oomKills = costOf(vm.noted().Private).oomKills
	driver, err := vm.driver(ctx)
	if err != nil {
		return err
	}
	m, err := driver.Start(ctx, *cfg)
	if err != nil {
		return err
	}
	vm.mu.Lock()
	vm.machine = m
	vm.mu.Unlock()
	u.add("kill VMM", m.Kill)
	p := m.Process()
	return vm.write(func(j *Journal) { j.Process = &p })
}

// thaw lets the guest execute, and talk, unless it has addresses to give up first.
func (s *starting) thaw(ctx context.Context, _ *undo) error {
	if nics := s.vm.nics; nics != nil && !s.readdress {
		if err := nics.Up(ctx); err != nil {
			return err
		}
	}
	select {
	case <-s.vm.machine.Done(): // it died before it was told to run
		return fmt.Errorf("the VMM ended: %w", errdefs.ErrAborted)
	default:
	}
	s.ran = true
	return s.vm.machine.Resume(ctx)
}

func (s *starting) meet(ctx context.Context, u *undo) error {
	a, err := s.vm.host.Dial(ctx, s.vm.machine, consoleFile(s.vm.dir))
	if err != nil {
		return err
	}
	s.vm.mu.Lock()
	s.vm.agent = a
	s.vm.mu.Unlock()
	u.add("close agent", func(context.Context) error { return a.Close() })
	return nil
}

func (s *starting) setup(ctx context.Context, _ *undo) error {
	agent, sp := s.vm.agent, s.vm.spec()
	info, err := agent.Info(ctx, &agentv1.InfoRequest{})
	if err != nil {
		return err
	}
	req, err := bundle.Setup(sp)
	if err != nil {
		return err
	}
	req.Copies = s.vm.bundle.Copies.Mounts()
	if _, err := agent.Setup(ctx, req); err != nil {
		return err
	}
	for files, err := range s.vm.bundle.Copies.Requests(ctx) {
		if err != nil {
			return err
		}
		if _, err := agent.Copy(ctx, files); err != nil {
			return err
		}
	}
	if len(sp.NICs) > 0 {
		if _, err := agent.ConfigureNetwork(ctx, &agentv1.ConfigureNetworkRequest{Nics: agentNICs(sp.NICs)}); err != nil {
			return err
		}
	}
	return s.vm.write(func(j *Journal) {
		sp := j.Spec.Clone()
		sp.Kernel.Version = info.GetKernel()
		j.Spec, j.BootID = sp, info.GetBootId()
	})
}

func (s *starting) init(ctx context.Context, _ *undo) error {
	if err := s.vm.run(ctx, s.vm.init, s.streams, guest.Offsets{}, func() {}); err != nil {
		return err
	}
	s.vm.resize(ctx, s.vm.init)
	return nil
}

// openFiles are closed once the VMM has its own.
type openFiles struct{ all []*os.File }

func (o *openFiles) open(path string, flag int) (*os.File, error) {
	f, err := os.OpenFile(path, flag, 0o600)
	if err == nil {
		o.all = append(o.all, f)
	}
	return f, err
}

func (o *openFiles) close() {
	for _, f := range o.all {
		f.Close()
	}
}

// vmmConfig derives the VMM's configuration from the Spec and from what this node has
// made for it; nothing that a snapshot says names a file.
func (vm *VM) vmmConfig(files *openFiles) (*vmm.Config, error) {
	j, cfg := vm.noted(), vm.host.Config
	ram, err := files.open(j.RAM, os.O_RDWR)
	if err != nil {
		return nil, err
	}
	console, err := files.open(consoleFile(vm.dir), os.O_WRONLY|os.O_CREATE|os.O_APPEND)
	if err != nil {
		return nil, err
	}
	out := &vmm.Config{
		Name: vm.namespace + "/" + vm.id, Dir: j.RunDir, NetNS: j.NetNS,
		Machine: j.Spec.VMM.Machine, CPU: j.Spec.VMM.CPU, Memory: j.Spec.Memory, VCPUs: j.Spec.VCPUs,
		RAM: ram, Console: console, Agent: j.RunDir + "/agent.sock", Incoming: vm.restored, Cgroup: j.Cgroup,
	}
	if !vm.restored {
		out.Kernel, out.Initrd, out.Cmdline = cfg.Guest.Kernel, cfg.Guest.Initrd, j.Spec.Kernel.Cmdline
	}
	for i, d := range j.Spec.Disks {
		flag := os.O_RDWR
		if d.ReadOnly {
			flag = os.O_RDONLY
		}
		f, err := files.open(j.Disks[i].Path, flag)
		if err != nil {
			return nil, fmt.Errorf("disk %s: %w", d.ID, err)
		}
		out.Disks = append(out.Disks, vmm.Disk{ID: d.ID, Serial: d.Serial, Slot: d.Slot, File: f, ReadOnly: d.ReadOnly})
	}
	if vm.nics != nil {
		for i, tap := range vm.nics.Taps() {
			n := j.Spec.NICs[i]
			out.NICs = append(out.NICs, vmm.NIC{ID: n.ID, Slot: n.Slot, MAC: n.MAC, MTU: n.MTU, Tap: tap})
		}
	}
	return out, nil
}
