package shim

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/api/version"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/steps"
	"godwit.dev/godwit/shim/template"
	"godwit.dev/godwit/vmm"
)

// cloneBound is how long a copy may take to answer: much less than a boot, which comes
// after it where it does not.
const cloneBound = 15 * time.Second

// cloning is the part of a Start that knows of templates.
type cloning struct {
	start    *starting
	wanted   *template.Shape    // none was there
	shape    *template.Shape    // of the template that the VM is a copy of
	template *template.Template // that the VM is being made of
}

// loading reports whether the VM is being made of a template now.
func (c *cloning) loading() bool { return c != nil && c.template != nil }

// clone starts the VM as a copy of its shape's template, if there is one. It is never a
// reason for a Start to fail: whatever goes wrong, the VMM is killed, its RAM is emptied,
// the template is thrown away, and the VM boots.
func (c *cloning) clone(ctx context.Context, u *steps.Undo) error {
	vm := c.start.vm
	if vm.host.Templates == nil {
		return nil
	}
	if err := smallPages(vm.host.Config.RAMDir); err != nil {
		vm.log.Debug("boot: no template can be", "reason", err)
		return nil
	}
	shape, err := c.shapeOf()
	if err != nil {
		vm.log.Debug("boot: no template can be", "reason", err)
		return nil
	}
	t, err := vm.host.Templates.Open(shape)
	if errdefs.IsNotFound(err) {
		c.wanted = &shape
		return nil
	}
	if err == nil {
		err = c.copy(ctx, u, t)
		err = errors.Join(err, t.Close())
	}
	if err == nil {
		c.shape = &shape
		return nil
	}
	if ctx.Err() != nil {
		return err // the task is killed, or its caller has gone: the template is not to blame
	}
	if !c.stopped() {
		return fmt.Errorf("a copy that failed does not end: %w", err)
	}
	vm.log.Warn("template does not do: boot", "template", shape.Key(), "error", err)
	c.discardTemplate(shape, err)
	return c.resetFiles()
}

func (c *cloning) discardTemplate(shape template.Shape, reason error) {
	vm := c.start.vm
	if err := vm.host.Templates.Discard(shape, reason); err != nil {
		vm.log.Warn("throw template away", "template", shape.Key(), "error", err)
	}
}

// discardUnresponsive throws the template away whose copy has answered and then, asked for more than that
// within soon, dies or falls silent: this Start fails, but no other one because of it. What
// the guest refuses is the container's fault.
func (c *cloning) discardUnresponsive(ctx, soon context.Context, err error) {
	if c == nil || c.shape == nil || err == nil || ctx.Err() != nil || soon.Err() == nil && !c.stopped() {
		return
	}
	c.start.vm.log.Warn("a copy has fallen silent: throw its template away", "template", c.shape.Key(), "error", err)
	c.discardTemplate(*c.shape, err)
}

// request notes that a template of the VM's shape would have been of use. Only once the VM
// runs: a shape that does not boot makes none, and the boot has the CPUs for itself.
func (c *cloning) request() {
	if c == nil || c.wanted == nil {
		return
	}
	if err := c.start.vm.host.Templates.Request(*c.wanted); err != nil {
		c.start.vm.log.Warn("ask for a template", "error", err)
	}
}

// copy makes the VM out of t up to where its agent has answered. On an error nothing of it
// runs any more.
func (c *cloning) copy(ctx context.Context, u *steps.Undo, t *template.Template) error {
	bounded, cancel := context.WithTimeout(ctx, cloneBound)
	defer cancel()
	made := new(steps.Undo)
	c.template = t
	defer func() { c.template = nil }()
	vm := c.start.vm
	err := steps.Run(bounded, made, undoBound, []steps.Step{
		steps.New("start VMM for a copy", c.launchCopy),
		steps.New("load template", func(ctx context.Context, _ *steps.Undo) error {
			return vm.machine.LoadState(ctx, t.State)
		}),
		steps.New("run copy", c.start.resumeGuest),
		steps.New("meet copy", c.start.connect),
	})
	if err != nil {
		return err
	}
	vm.vmm.isCopy()
	c.start.kernel = t.Kernel
	u.Join(made)
	return nil
}

// launchCopy fills the RAM while the VMM starts, which does not look at it before it loads
// its state.
func (c *cloning) launchCopy(ctx context.Context, u *steps.Undo) error {
	vm, t := c.start.vm, c.template
	macs := map[int]string{}
	if !vm.vmm.facts().BareTemplates {
		for _, n := range vm.spec().NICs {
			macs[n.Slot] = n.MAC
		}
	}
	if err := t.Readdress(macs); err != nil {
		return err
	}
	ram, err := os.OpenFile(vm.journal.Load().RAM, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	poured := make(chan error, 1)
	go func() { poured <- t.CopyRAM(ctx, ram) }()
	err = c.start.launch(ctx, u)
	return errors.Join(err, <-poured, ram.Close())
}

// firstCall is a copy's first call: numbers of its own before anything else, and the time.
func (c *cloning) firstCall(ctx context.Context, a agentv1.AgentService) error {
	entropy := make([]byte, 64)
	if _, err := rand.Read(entropy); err != nil {
		return err
	}
	r, err := a.Restored(ctx, &agentv1.RestoredRequest{Entropy: entropy, UnixNano: time.Now().UnixNano()})
	if err != nil {
		return err
	}
	if len(r.GetProcesses()) > 0 || r.GetBootId() == "" {
		return fmt.Errorf("the copy is of a guest with %d processes: %w", len(r.GetProcesses()), errdefs.ErrDataLoss)
	}
	c.start.boot = r.GetBootId()
	return nil
}

// stopped reports whether no VMM of the VM runs.
func (c *cloning) stopped() bool {
	vm := c.start.vm
	vm.mu.Lock()
	machine := vm.machine
	vm.mu.Unlock()
	if machine == nil {
		return true
	}
	select {
	case <-machine.Done():
		return true
	default:
		return false
	}
}

// resetFiles takes back what a copy that failed has left in the VM's files.
func (c *cloning) resetFiles() error {
	vm := c.start.vm
	j := vm.journal.Load()
	ram, err := os.OpenFile(j.RAM, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("empty RAM: %w", err)
	}
	// Not cut: its size is what admission counts.
	err = unix.Fallocate(int(ram.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, int64(j.Spec.Memory))
	if err := errors.Join(err, ram.Close()); err != nil {
		return fmt.Errorf("empty RAM: %w", err)
	}
	// Its last words would be taken for the boot's.
	if err := os.Truncate(consoleFile(vm.dir), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("empty console: %w", err)
	}
	vm.mu.Lock()
	vm.machine, vm.agent = nil, nil
	vm.mu.Unlock()
	if j.Process == nil {
		return nil
	}
	return vm.write(func(j *journal.Journal) { j.Process = nil })
}

// shapeOf answers that of a VM that is not restored. An error says why no other VM can be like it.
func (c *cloning) shapeOf() (template.Shape, error) {
	vm, facts := c.start.vm, c.start.vm.vmm.facts()
	sp := vm.spec()
	out := baseShape(facts, vm.host.HostKernel)
	out.Guest, out.Cmdline = sp.Kernel.Digest, sp.Kernel.Cmdline
	out.Memory, out.VCPUs, out.HotDisks = sp.Memory, sp.VCPUs, sp.Pod != nil
	if facts.BareTemplates {
		return out, nil
	}
	for _, d := range sp.Disks {
		out.Disks = append(out.Disks, template.Disk{Slot: d.Slot, ReadOnly: d.ReadOnly})
	}
	for _, n := range sp.NICs {
		out.NICs = append(out.NICs, n.Slot)
	}
	return out, nil
}

// ShapeOf answers the shape of the VM of a container image that an order is about. NotImplemented:
// VMs like that start as copies of none here.
func ShapeOf(ctx context.Context, host *Host, o template.Order) (template.Shape, error) {
	driver, err := host.Driver(ctx, o.VMM)
	if err != nil {
		return template.Shape{}, err
	}
	facts, err := driver.Probe(ctx)
	if err != nil {
		return template.Shape{}, err
	}
	kernel, err := host.Kernel()
	if err != nil {
		return template.Shape{}, err
	}
	out := baseShape(facts, host.HostKernel)
	out.Memory, out.VCPUs = cmp.Or(o.Memory, uint64(host.Config.VM.Memory)), cmp.Or(o.VCPUs, 1)
	out.Guest, out.Cmdline = kernel.Digest, kernel.Cmdline+timerArguments(facts.Accel, out.VCPUs)
	if facts.BareTemplates {
		return out, nil
	}
	for i := range cmp.Or(o.Layers, 1) {
		out.Disks = append(out.Disks, template.Disk{Slot: firstDiskSlot + i, ReadOnly: true})
	}
	out.Disks = append(out.Disks, template.Disk{Slot: firstDiskSlot + len(out.Disks)})
	for i := range o.NICs {
		out.NICs = append(out.NICs, firstNICSlot+i)
	}
	return out, nil
}

// baseShape is what all VMs of one VMM have here.
func baseShape(f vmm.Facts, kernel string) template.Shape {
	out := template.Shape{
		Build: version.Version + " " + version.Commit,
		VMM:   f.Name, Version: f.Version, Machine: f.Machine, CPU: f.CPU, Accel: f.Accel,
	}
	if f.CPU == "host" {
		// What KVM shows of a CPU changes with the kernel: to make a template again costs less
		// than a guest that misses something it has seen.
		sum := sha256.Sum256([]byte(strings.Join(append(cpuFeatures(), kernel), " ")))
		out.Features = hex.EncodeToString(sum[:16])
	}
	return out
}

// CurrentShape says whether a VM that is started here today can have the shape.
func CurrentShape(ctx context.Context, host *Host, s template.Shape) bool {
	driver, err := host.Driver(ctx, s.VMM)
	if err != nil {
		return false
	}
	facts, err := driver.Probe(ctx)
	if err != nil {
		return false
	}
	kernel, err := host.Kernel()
	if err != nil {
		return false
	}
	want := baseShape(facts, host.HostKernel)
	want.Guest, want.Cmdline = kernel.Digest, kernel.Cmdline+timerArguments(facts.Accel, s.VCPUs)
	want.Memory, want.VCPUs, want.Disks, want.NICs, want.HotDisks = s.Memory, s.VCPUs, s.Disks, s.NICs, s.HotDisks
	return want.Key() == s.Key()
}
