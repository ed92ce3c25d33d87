package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/guest/client"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/serial"
	"godwit.dev/godwit/shim/steps"
	"godwit.dev/godwit/vmm"
)

// errNoAgent is why nothing is executed in, or told to, the guest of a VM disk.
var errNoAgent = fmt.Errorf("the VM boots the system of its disk, where no agent of godwit's runs: use the network "+
	"or the serial console (ctr task attach): %w", errdefs.ErrNotImplemented)

// vmDisk makes the files of a VM disk. The guest's own path of it goes into what another
// node makes the container of: there it is one without an image.
func (c *creation) vmDisk(ctx context.Context, dir string) error {
	set, err := c.host.Disks.PrepareVMDisk(ctx, VMDiskRequest{
		Namespace: c.vm.namespace, ID: c.vm.id, Container: c.bundle.Container, Mounts: c.req.GetRootfs(), Dir: dir,
		VMM: c.vm.spec().VMM.Name, Disk: *c.bundle.VMDisk,
	})
	if err != nil {
		return err
	}
	return c.vm.write(func(j *journal.Journal) {
		s := j.Spec.Clone()
		s.VMDisk.Path = set.Path
		s.Disks = slices.Clone(set.Disks)
		for i, slot := range diskSlots(s.Disks) {
			s.Disks[i].Slot = slot
			if s.Disks[i].Type == spec.TypeKernel {
				s.Kernel.Digest = s.Disks[i].Digest
			}
		}
		oci := s.Container.OCI
		if oci.Annotations == nil {
			oci.Annotations = map[string]string{}
		}
		oci.Annotations[spec.AnnotationPrefix+"disk"] = set.Path
		j.Spec, j.Disks = s, set.Files
	})
}

// bootsDisk fills in what a VM with a system of its own has and a container's has not.
// It is the same after a wake: the guest may reset itself, and then boots as before.
func bootsDisk(out *vmm.Config, j *journal.Journal, files *openFiles) (err error) {
	out.Serial, out.Reboots, out.HyperV = serialSocket(j), true, j.Spec.Windows()
	for i, d := range j.Spec.Disks {
		path := j.Disks[i].Path
		switch d.Type {
		case spec.TypeKernel:
			out.Kernel, out.Cmdline = path, j.Spec.Kernel.Cmdline
		case spec.TypeInitrd:
			out.Initrd = path
		case spec.TypeFirmware:
			out.Firmware, err = files.open(path, os.O_RDONLY)
		case spec.TypeNVRAM:
			out.NVRAM, err = files.open(path, os.O_RDWR)
		}
		if err != nil {
			return fmt.Errorf("disk %s: %w", d.ID, err)
		}
	}
	return nil
}

func serialSocket(j *journal.Journal) string { return j.RunDir + "/console.sock" }

// diskSteps are the steps of a Start from the VMM's on: there is no agent to meet. So the console is opened before the
// guest writes its first line, and a VM that executes is one that runs.
func (s *starting) diskSteps() []steps.Step {
	if s.vm.origin.restored {
		return []steps.Step{
			steps.New("begin fill", s.beginFill),
			steps.New("start VMM", s.skipIfArrived(s.launch)),
			steps.New("load state", s.skipIfArrived(s.load)),
			steps.New("open console", s.connect),
			steps.New("commit", s.commit),
			steps.New("resume", s.resumeGuest),
			steps.New("take up console", s.settleVMDisk),
			steps.New("plug NICs in", s.plug),
			steps.New("run", s.run),
		}
	}
	return []steps.Step{
		steps.New("start VMM", s.launch),
		steps.New("open console", s.connect),
		steps.New("boot", s.resumeGuest),
		steps.New("take up console", s.init),
		steps.New("run", s.run),
	}
}

// settleVMDisk is verifyGuest for a guest without an agent.
func (s *starting) settleVMDisk(ctx context.Context, _ *steps.Undo) error {
	return s.resumeOperation(ctx)
}

// dial connects to the guest: to its agent, or to its console, which goes on at from.
func (vm *VM) dial(ctx context.Context, m vmm.Machine, from client.Offsets, first FirstCall) (Agent, error) {
	if vm.spec().HasAgent() {
		return vm.host.Dial(ctx, m, consoleFile(vm.dir), first)
	}
	return serial.Open(serialSocket(vm.journal.Load()), m.Done(), from.Stdout, from.Stdin), nil
}

// signalSystem is what a signal means for a system of which no process is known: what
// ends a process presses the power button, which the guest may not heed, and what ends
// one at once ends the VM.
func (vm *VM) signalSystem(ctx context.Context, signal uint32) error {
	switch {
	case signal == sigkill:
		vm.ending.end(context.WithoutCancel(ctx), killed, time.Now())
		return nil
	case !ends(signal):
		return nil
	}
	vm.mu.Lock()
	machine := vm.machine
	vm.mu.Unlock()
	return machine.PowerButton(ctx)
}

// consoleBound is how long the rest of the console may take to reach its client.
const consoleBound = 3 * time.Second

// drainConsole takes what the console still holds to where it belongs.
func (e *ending) drainConsole(ctx context.Context) {
	e.drainGuest(ctx)
	ctx, cancel := context.WithTimeout(ctx, consoleBound)
	defer cancel()
	e.vm.mu.Lock()
	pumps := e.vm.owner.init.pump
	e.vm.mu.Unlock()
	if pumps != nil {
		pumps.WaitDrained(ctx)
	}
}

// hostStats are the figures of a guest that tells none: what its RAM takes of the host.
// A file that has gone takes nothing.
func hostStats(j *journal.Journal) (*agentv1.StatsResponse, error) {
	var st unix.Stat_t
	if err := unix.Stat(j.RAM, &st); err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("look at RAM: %w: %w", errdefs.ErrUnavailable, err)
	}
	resident := uint64(st.Blocks) * 512
	return &agentv1.StatsResponse{MemoryCurrent: resident, MemoryMaxUsage: resident}, nil
}
