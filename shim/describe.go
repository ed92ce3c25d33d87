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
	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/worker"
	"godwit.dev/godwit/vmm"
)

// firstDiskSlot and firstNICSlot are where the devices of a VM lie, on every node.
const (
	firstDiskSlot = 8
	firstNICSlot  = 4
)

// describe makes the Spec: of a new VM from its bundle, of a restored one as the
// snapshot has it.
func (c *creation) describe(ctx context.Context, _ *undo) error {
	if c.snapshot != nil {
		c.next.Spec = c.snapshot.Spec
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
	if s.Kernel, err = c.host.Kernel(); err != nil {
		return err
	}
	s.Kernel.Cmdline += ticks(facts.Accel, s.VCPUs)
	c.vm.vmmVersion, c.vm.overhead = facts.Version, facts.Overhead
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
func (c *creation) open(ctx context.Context, _ *undo) error {
	if c.decision.Action != record.Restore {
		return nil
	}
	opened, err := c.host.Snapshots(nil).Open(ctx, worker.OpenJob{
		Store: storeConfig(c.host.Config, c.decision.Repository), Digest: digest.Digest(c.decision.Digest),
	})
	if err != nil {
		return err
	}
	cfg := opened.Config
	if err := c.genuine(cfg); err != nil {
		return err
	}
	driver, err := c.host.Driver(ctx, cfg.Facts.VMM)
	if err != nil {
		return fmt.Errorf("restore snapshot %s: %w", c.decision.Digest, err)
	}
	facts, err := driver.Probe(ctx)
	if err != nil {
		return err
	}
	c.vm.vmmVersion, c.vm.overhead = facts.Version, facts.Overhead
	if err := compatible(cfg.Facts, factsOf(facts, c.host.HostKernel)); err != nil {
		return fmt.Errorf("restore snapshot %s: %w", c.decision.Digest, err)
	}
	image, base := c.bundle.Spec.Container.Image, cfg.Spec.Container
	if image != "" && base != nil && base.Image != "" && image != base.Image {
		return mismatch(c.decision.Digest, "image", base.Image, image)
	}
	c.snapshot, c.vm.restored = cfg, true
	return nil
}

func (c *creation) genuine(cfg *snapshot.Config) error {
	digest, vm := c.decision.Digest, c.vm.namespace+"/"+c.vm.id
	switch {
	case cfg.Spec == nil || cfg.Spec.Version != spec.Version:
		return fmt.Errorf("restore snapshot %s: its Spec has a version that this build does not know: %w", digest, errdefs.ErrNotImplemented)
	case cfg.Spec.VMM != spec.VMM{Name: cfg.Facts.VMM, Machine: cfg.Facts.Machine, CPU: cfg.Facts.CPU}:
		return fmt.Errorf("restore snapshot %s: its Spec names VMM %v, its facts %v: %w", digest, cfg.Spec.VMM, cfg.Facts, errdefs.ErrInvalidArgument)
	case cfg.Ref.VM != vm || cfg.Spec.Namespace+"/"+cfg.Spec.ID != vm:
		return mismatch(digest, "VM", cfg.Ref.VM, vm)
	case cfg.Ref.UID != c.record.GetUid() || cfg.Spec.UID != c.record.GetUid():
		return mismatch(digest, "uid", cfg.Ref.UID, c.record.GetUid())
	}
	for _, ref := range c.record.GetSnapshots() {
		if ref.GetDigest() != digest {
			continue
		}
		if ref.GetGeneration() != cfg.Ref.Generation || ref.GetOperation() != cfg.Ref.Operation {
			return mismatch(digest, "operation", cfg.Ref.Operation, ref.GetOperation())
		}
	}
	return nil
}

func mismatch(digest, what, has, want string) error {
	return fmt.Errorf("restore snapshot %s: its %s is %s, wanted %s: %w", digest, what, has, want, errdefs.ErrFailedPrecondition)
}

// factsOf says what device state made here depends on.
func factsOf(f vmm.Facts, kernel string) snapshot.Facts {
	out := snapshot.Facts{VMM: f.Name, Version: f.Version, Machine: f.Machine, Accel: f.Accel, CPU: f.CPU, Kernel: kernel}
	if f.CPU == "host" {
		out.Features = cpuFeatures()
	}
	return out
}

// compatible says whether state made under was runs under is. The host's kernel is
// recorded for people; it does not decide.
func compatible(was, is snapshot.Facts) error {
	for _, f := range []struct{ name, was, is string }{
		{"VMM", was.VMM, is.VMM}, {"machine", was.Machine, is.Machine},
		{"acceleration", was.Accel, is.Accel}, {"CPU model", was.CPU, is.CPU},
	} {
		if f.was != f.is {
			return fmt.Errorf("its %s is %q, this node has %q: %w", f.name, f.was, f.is, errdefs.ErrFailedPrecondition)
		}
	}
	if older(is.Version, was.Version) {
		return fmt.Errorf("it was made by %s %s, this node has the older %s: %w", was.VMM, was.Version, is.Version, errdefs.ErrFailedPrecondition)
	}
	for _, feature := range was.Features {
		if !slices.Contains(is.Features, feature) {
			return fmt.Errorf("it needs the CPU feature %s, which this node lacks: %w", feature, errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}

func (c *creation) reserve(context.Context, *undo) error {
	cfg := c.host.Config
	if err := c.host.Pool(cfg.RAMDir, uint64(cfg.RAMSize)); err != nil {
		return err
	}
	if err := os.MkdirAll(c.next.RunDir, 0o700); err != nil {
		return err
	}
	return reserveRAM(c.next.RAM, c.vm.spec().Memory)
}

// disks makes the block files: from containerd's mounts for a boot; for a restore the
// names alone, which fill gives content.
func (c *creation) disks(ctx context.Context, _ *undo) error {
	dir := filepath.Join(c.vm.dir, "disks")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if c.snapshot != nil {
		if err := c.host.Disks.Forget(c.req.GetRootfs()); err != nil {
			return err
		}
		return c.vm.write(func(j *Journal) { j.Disks = restoredDisks(j.Spec, dir) })
	}
	set, err := c.host.Disks.Prepare(ctx, DisksRequest{
		Namespace: c.vm.namespace, ID: c.vm.id, Mounts: c.req.GetRootfs(),
		Dir: dir, Bundle: c.req.GetBundle(), WritableSize: c.bundle.WritableSize, Room: c.bundle.CopyRoom(),
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
	return c.vm.write(func(j *Journal) {
		s := j.Spec.Clone()
		s.Disks = slices.Clone(set.Disks)
		for i := range s.Disks {
			s.Disks[i].Slot = firstDiskSlot + i
		}
		s.Container.Layers, s.Container.Writable = set.Layers, set.Writable
		j.Spec, j.Disks = s, set.Files
	})
}
