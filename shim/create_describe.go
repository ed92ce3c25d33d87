package shim

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"
	"github.com/opencontainers/go-digest"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/steps"
	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/worker"
)

// firstDiskSlot and firstNICSlot are where the devices of a VM lie, on every node.
const (
	firstDiskSlot = 8
	firstNICSlot  = 4
)

// describe makes the Spec: of a new VM from its bundle, of a restored one as the
// snapshot has it.
func (c *creation) describe(ctx context.Context, _ *steps.Undo) error {
	if c.snapshot != nil {
		c.bundle.OwnedIn(c.snapshot.Spec.Of(c.snapshot.Spec.Container))
		if c.next.Spec = c.snapshot.Spec; c.bundle.Spec.Pod != nil { // the VM is that of this pod from here on
			c.next.Spec = c.next.Spec.Clone()
			c.next.Spec.Pod.UID = c.bundle.Spec.Pod.UID
			c.next.Spec.SetNetwork(c.bundle.Spec.Annotations[spec.AnnotationNetwork])
		}
		if record.OriginOf(c.record, c.decision.Digest) != nil { // it was another VM's, and is this one's from here on
			c.next.Spec = c.next.Spec.Clone()
			c.next.Spec.Become(c.vm.namespace, c.vm.id, c.record.GetUid(), c.bundle.Spec.Annotations[spec.AnnotationVM])
		}
		return nil
	}
	driver, err := c.host.Driver(ctx, c.bundle.VMM)
	if err != nil {
		return err
	}
	facts, err := driver.Probe(ctx)
	if err != nil {
		return err
	}
	s := c.bundle.Spec
	if v := c.bundle.VMDisk; v != nil {
		s.Kernel.Cmdline = v.Cmdline
	} else {
		if s.Kernel, err = c.host.Kernel(); err != nil {
			return err
		}
		s.Kernel.Cmdline += timerArguments(facts.Accel, s.VCPUs)
	}
	c.vm.vmm.note(facts)
	s.VMM = spec.VMM{Name: facts.Name, Machine: facts.Machine, CPU: facts.CPU}
	s.UID = c.record.GetUid()
	if s.UID == "" {
		s.UID = uuid.NewString()
	}
	c.next.Spec = s
	return nil
}

// open reads what the snapshot says of itself and refuses it before anything is
// reserved: it must be of this VM and of the hibernate that the record names, and its
// device state must fit what this node runs.
func (c *creation) open(ctx context.Context, _ *steps.Undo) error {
	switch c.decision.Action {
	case record.Restore:
	case record.Receive:
		return c.openStreamed(ctx)
	default:
		return nil
	}
	at, err := c.host.storeOf(ctx, c.decision.Repository)
	if err != nil {
		return fmt.Errorf("restore %s: %w", c.source(), err)
	}
	opened, err := c.host.Snapshots(nil).Open(ctx, worker.OpenJob{
		Store: at, Keys: worker.KeysOf(c.host.Config),
		Digest: digest.Digest(c.decision.Digest),
	})
	if err != nil {
		return fmt.Errorf("restore %s: %w", c.source(), err)
	}
	if err := c.fits(ctx, opened.Config); err != nil {
		return err
	}
	return c.chooseMode(ctx, opened.RAM)
}

// openStreamed is open of a VM that its source streams: what it was told of is refused as a
// snapshot would be.
func (c *creation) openStreamed(ctx context.Context) error {
	s := c.intent.Stream
	ref := snapshot.Ref{
		VM: c.vm.namespace + "/" + c.vm.id, UID: c.record.GetUid(), Operation: c.intent.Operation, Attempt: c.intent.Attempt,
		Generation: s.GetGeneration(),
	}
	cfg, err := snapshot.Announced(ref, s.GetSpec(), s.GetFacts())
	if err == nil {
		err = c.checkAnnounced(cfg.Spec, s.GetResume())
	}
	if err != nil {
		return fmt.Errorf("restore %s: %w", c.source(), err)
	}
	return c.fits(ctx, cfg)
}

// fits refuses what is not of this VM, or does not fit what this node runs.
func (c *creation) fits(ctx context.Context, cfg *snapshot.Config) error {
	if err := c.checkIdentity(cfg); err != nil {
		return err
	}
	facts, err := c.host.checkFacts(ctx, cfg.Facts, cfg.Spec)
	if err != nil {
		return fmt.Errorf("restore %s: %w", c.source(), err)
	}
	c.vm.vmm.note(facts)
	c.waits = facts.Waits
	if is, was := c.bundle.Spec.Container, cfg.Spec.Container; is != nil && was != nil && is.Image != "" &&
		was.Image != "" && is.Image != was.Image {
		return mismatch(c.source(), "image", was.Image, is.Image)
	}
	if is, was := c.bundle.Spec, cfg.Spec; !is.Of(is.Container).Alike(was.Of(was.Container)) {
		return mismatch(c.source(), "user namespace (linux.uidMappings, linux.gidMappings)",
			was.Of(was.Container).String(), is.Of(is.Container).String())
	}
	c.snapshot, c.vm.origin.restored = cfg, true
	return nil
}

func (c *creation) checkIdentity(cfg *snapshot.Config) error {
	digest, vm, uid := c.source(), c.vm.namespace+"/"+c.vm.id, c.record.GetUid()
	if from := record.OriginOf(c.record, c.decision.Digest); from != nil { // the record says whose snapshot it begins from
		vm, uid = from.GetVm().GetNamespace()+"/"+from.GetVm().GetId(), from.GetUid()
	}
	switch {
	case cfg.Spec == nil || cfg.Spec.Version > spec.Version:
		return fmt.Errorf("restore %s: its Spec has a version that this build does not know: %w", digest,
			errdefs.ErrNotImplemented)
	case cfg.Spec.VMM != spec.VMM{Name: cfg.Facts.VMM, Machine: cfg.Facts.Machine, CPU: cfg.Facts.CPU}:
		return fmt.Errorf("restore %s: its Spec names VMM %v, its facts %v: %w", digest, cfg.Spec.VMM, cfg.Facts,
			errdefs.ErrInvalidArgument)
	case cfg.Ref.VM != vm || cfg.Spec.Namespace+"/"+cfg.Spec.ID != vm:
		return mismatch(digest, "VM", cfg.Ref.VM, vm)
	case cfg.Ref.UID != uid || cfg.Spec.UID != uid:
		return mismatch(digest, "uid", cfg.Ref.UID, uid)
	}
	if ids := cfg.Spec.NodeDevices(); len(ids) > 0 {
		return fmt.Errorf("restore %s: its Spec has disks %q, block devices of a node: no build writes such a snapshot: %w",
			digest, ids, errdefs.ErrInvalidArgument)
	}
	if err := c.checkPod(cfg.Spec); err != nil {
		return err
	}
	for _, ref := range c.record.GetSnapshots() {
		if ref.GetDigest() != c.decision.Digest {
			continue
		}
		if ref.GetGeneration() != cfg.Ref.Generation || ref.GetOperation() != cfg.Ref.Operation {
			return mismatch(digest, "operation", cfg.Ref.Operation, ref.GetOperation())
		}
	}
	return nil
}

// source names what the VM comes from, for errors.
func (c *creation) source() string {
	if c.decision.Action == record.Receive {
		return "the stream of operation " + c.intent.Operation
	}
	return "snapshot " + c.decision.Digest
}

func mismatch(from, what, has, want string) error {
	return fmt.Errorf("restore %s: its %s is %s, wanted %s: %w", from, what, has, want, errdefs.ErrFailedPrecondition)
}

func (c *creation) reserve(context.Context, *steps.Undo) error {
	cfg := c.host.Config
	if err := c.host.Pool(cfg.RAMDir, uint64(cfg.RAMSize), uint64(cfg.RAMHugePages)); err != nil {
		return err
	}
	if c.snapshot != nil {
		if err := smallPages(cfg.RAMDir); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(c.next.RunDir, 0o700); err != nil {
		return err
	}
	return reserveRAM(c.next.RAM, c.vm.spec().Memory, cfg.VMM.FirstUser)
}

// disks makes the block files: from containerd's mounts for a boot; for a restore the
// names alone, which fill gives content.
func (c *creation) disks(ctx context.Context, _ *steps.Undo) error {
	dir := filepath.Join(c.vm.dir, "disks")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if c.snapshot != nil {
		if c.snapshot.Spec.Pod == nil { // the containers of a pod bring their mounts later
			if err := c.host.Disks.Forget(DisksRequest{Namespace: c.vm.namespace, ID: c.vm.id,
				Container: c.bundle.Container, Mounts: c.req.GetRootfs(), Dir: dir}); err != nil {
				return err
			}
		}
		return c.vm.write(func(j *journal.Journal) { j.Disks = restoredDisks(j.Spec, dir) })
	}
	if c.bundle.VMDisk != nil {
		return c.vmDisk(ctx, dir)
	}
	if c.bundle.Spec.Pod != nil {
		return c.podDisk(ctx, dir)
	}
	set, err := c.host.Disks.Prepare(ctx, DisksRequest{
		Namespace: c.vm.namespace, ID: c.vm.id, Container: c.bundle.Container, Mounts: c.req.GetRootfs(),
		Dir: dir, Bundle: c.req.GetBundle(), WritableSize: c.bundle.WritableSize, Room: c.bundle.CopyRoom(),
		Program: c.bundle.Program(),
	})
	if err != nil {
		return err
	}
	for _, d := range set.Disks {
		if d.ID != set.Writable {
			continue
		}
		if err := c.bundle.FitCopies(d.Size); err != nil {
			return err
		}
	}
	return c.vm.write(func(j *journal.Journal) {
		s := j.Spec.Clone()
		s.Disks = set.slotted()
		s.Container.Layers, s.Container.Writable = set.Layers, set.Writable
		j.Spec, j.Disks = s, set.Files
	})
}

// slotted are the disks of a VM that boots, in the slots where every node has them.
func (set *DiskSet) slotted() []spec.Disk {
	disks := slices.Clone(set.Disks)
	for i, slot := range diskSlots(disks) {
		disks[i].Slot = slot
	}
	return disks
}
