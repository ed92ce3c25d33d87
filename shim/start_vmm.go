package shim

import (
	"context"
	"fmt"
	"io"
	"os"

	"godwit.dev/godwit/shim/cgroup"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/steps"
	"godwit.dev/godwit/snapshot/track"
	"godwit.dev/godwit/vmm"
)

func (s *starting) launch(ctx context.Context, u *steps.Undo) (err error) {
	vm := s.vm
	files := &openFiles{}
	defer files.close()
	cfg, err := s.vmmConfig(files, vm.origin.restored || s.cloning.loading())
	if err != nil {
		return err
	}
	cfg.Template = s.cloning.loading()
	cfg.Track, cfg.Ahead = userfaultOf(ctx, vm), vm.origin.arrival != nil
	if vm.origin.restored {
		cfg.Mapped = s.startTracking
	}
	before, err := cgroup.CostOf(vm.journal.Load().Private)
	if err != nil {
		return err
	}
	vm.vmm.starts(before.OOMKills)
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
	u.Add("kill VMM", m.Kill)
	p := m.Process()
	if err := vm.write(func(j *journal.Journal) { j.Process, j.Armed = &p, false }); err != nil {
		return err
	}
	c := vm.tracking.currentChoice(ctx)
	vm.log.Info("RAM is tracked", "way", c.Way, "reason", c.Reason)
	return nil
}

// userfaultOf is the userfaultfd that the VMM is to hold.
func userfaultOf(ctx context.Context, vm *VM) vmm.Tracking {
	switch {
	case vm.host.chooseTracking(ctx).Way != track.UFFD:
		return vmm.NoTracking
	case vm.journal.Load().Postcopy != nil:
		return vmm.TrackPages
	}
	return vmm.TrackWrites
}

// openFiles are closed once the VMM has its own.
type openFiles struct{ all []io.Closer }

// keep closes c together with the files.
func (o *openFiles) keep(c io.Closer) { o.all = append(o.all, c) }

func (o *openFiles) open(path string, flag int) (*os.File, error) {
	f, err := os.OpenFile(path, flag, 0o600)
	if err == nil {
		o.keep(f)
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
func (s *starting) vmmConfig(files *openFiles, incoming bool) (*vmm.Config, error) {
	vm := s.vm
	j, cfg := vm.journal.Load(), vm.host.Config
	ram, err := files.open(j.RAM, os.O_RDWR)
	if err != nil {
		return nil, err
	}
	out := &vmm.Config{
		Name: vm.namespace + "/" + vm.id, Dir: j.RunDir, NetNS: j.NetNS,
		Machine: j.Spec.VMM.Machine, CPU: j.Spec.VMM.CPU, Memory: j.Spec.Memory, VCPUs: j.Spec.VCPUs,
		RAM: ram, Agent: j.RunDir + "/agent.sock", Incoming: incoming, Cgroup: j.Cgroup,
		HotDisks: j.Spec.Pod != nil,
	}
	if !j.Spec.HasAgent() {
		err = bootsDisk(out, j, files)
	} else {
		out.Console, err = files.open(consoleFile(vm.dir), os.O_WRONLY|os.O_CREATE|os.O_APPEND)
		if !incoming {
			out.Kernel, out.Initrd, out.Cmdline = cfg.Guest.Kernel, cfg.Guest.Initrd, j.Spec.Kernel.Cmdline
		}
	}
	if err != nil {
		return nil, err
	}
	for i, d := range j.Spec.Disks {
		if !d.Device() {
			continue
		}
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
	if nics := vm.nic.wiring(); nics != nil && !(vm.origin.restored && j.Spec.Recycles()) { // the state has none then
		for i, tap := range nics.Taps() {
			n := j.Spec.NICs[i]
			out.NICs = append(out.NICs, vmm.NIC{ID: n.ID, Slot: n.Slot, MAC: n.MAC, MTU: n.MTU, Tap: tap})
		}
	}
	return out, nil
}
