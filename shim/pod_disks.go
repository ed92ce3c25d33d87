package shim

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/internal/failpoint"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/steps"
	"godwit.dev/godwit/vmm"
)

// prepare makes the disk of the container's image. That may take long: no lock is held, and what was built is there
// for the next try.
func (c *memberCreation) prepare(ctx context.Context, _ *steps.Undo) (err error) {
	learnt := c.learnImage(ctx)
	c.image, err = c.vm.host.Disks.PrepareImage(ctx, DisksRequest{
		Namespace: c.vm.namespace, ID: c.task.id, Mounts: c.req.GetRootfs(), Dir: filepath.Join(c.vm.dir, "disks"),
		Bundle: c.req.GetBundle(), Program: c.bundle.Program(),
	})
	c.member.ImageID = learnt()
	return err
}

// plug gives the container its id and its disks. The journal has them before the VMM does. A disk that another
// container of the pod has, or had, is there already.
func (c *memberCreation) plug(ctx context.Context, u *steps.Undo) error {
	vm := c.vm
	c.over = vm.lockAndCall()
	if err := vm.pod.changing.Take(ctx); err != nil {
		return err
	}
	defer vm.pod.changing.Give()
	var layers []string
	for i, d := range c.image.Disks {
		id, err := vm.pod.add(ctx, d, c.image.Files[i].Path)
		if err != nil {
			return err
		}
		layers = append(layers, id)
	}
	u.Add("release devices", c.releaseDevices)
	u.Add("take container back", c.takeBack)
	if err := c.plugDevices(ctx); err != nil {
		return err
	}
	return c.task.member.unnamed(vm.write(func(j *journal.Journal) {
		s := j.Spec.Clone()
		s.Pod.Issued++
		c.task.member.named(fmt.Sprintf("c%d", s.Pod.Issued))
		c.member.Guest, c.member.Layers = c.task.guest, layers
		c.member.Mounts = c.name(s.Pod, j)
		s.Pod.Containers = append(s.Pod.Containers, c.member)
		j.ForgetEnd(c.member.Name)
		j.Spec = s
		j.Members = append(slices.Clone(j.Members), c.onNode())
	}))
}

// named gives a task its container's id in the guest.
func (m *member) named(guest string) {
	t := m.t
	t.vm.mu.Lock()
	defer t.vm.mu.Unlock()
	t.guest, t.prefix, t.init.guest = guest, guest+"/", guest
	t.stats.of, t.bundle.Member.Container.Guest = guest, guest
}

// hadEnded says how the container ended before its pod came. What ends such containers looks at all tasks.
func (m *member) hadEnded(end *journal.Exit) {
	m.t.vm.mu.Lock()
	defer m.t.vm.mu.Unlock()
	m.ended = end
}

// add answers the id of a disk of that content, which the VM has or gets now. The caller holds changing.
func (p *pod) add(ctx context.Context, d spec.Disk, path string) (string, error) {
	if p.doubtful[d.ID] {
		if err := p.drop(ctx, d.ID); err != nil {
			return "", err
		}
	}
	if p.vm.spec().Disk(d.ID) != nil { // ids are made of the content
		return d.ID, nil
	}
	slot, err := p.freeSlot(ctx)
	if err != nil {
		return "", err
	}
	d.Slot = slot
	err = p.vm.write(func(j *journal.Journal) {
		s := j.Spec.Clone()
		s.Disks = append(s.Disks, d)
		j.Spec, j.Disks = s, append(slices.Clone(j.Disks), journal.Disk{ID: d.ID, Path: path})
	})
	if err != nil {
		return "", err
	}
	if err := p.plugIn(ctx, d, path); err != nil {
		return "", errors.Join(fmt.Errorf("plug in disk %s: %w", d.ID, err), p.drop(context.WithoutCancel(ctx), d.ID))
	}
	return d.ID, nil
}

func (p *pod) plugIn(ctx context.Context, d spec.Disk, path string) error {
	f, err := openDisk(d, path)
	if err != nil {
		return err
	}
	defer f.Close()
	machine, _ := p.vm.current()
	return failpoint.Record(podPoint, "AddDisk", func() error {
		return machine.AddDisk(ctx, vmm.Disk{ID: d.ID, Serial: d.Serial, Slot: d.Slot, File: f, ReadOnly: d.ReadOnly})
	})
}

// freeSlot answers a hot slot that is free, and makes one free if a disk is left that no container has.
func (p *pod) freeSlot(ctx context.Context) (int, error) {
	sp := p.vm.spec()
	for slot := spec.FirstHotSlot; slot <= spec.LastHotSlot; slot++ {
		if !slices.ContainsFunc(sp.Disks, func(d spec.Disk) bool { return d.Slot == slot }) {
			return slot, nil
		}
	}
	var stuck error
	for _, d := range sp.Disks {
		if d.Slot < spec.FirstHotSlot || sp.Pod.Uses(d.ID) {
			continue
		}
		err := p.drop(ctx, d.ID)
		if err == nil {
			return d.Slot, nil
		}
		stuck = errors.Join(stuck, err)
	}
	if stuck != nil {
		return 0, stuck
	}
	return 0, fmt.Errorf("the containers of pod %s have %d images and devices, the most that a pod has at a time: %w",
		p.vm.id, spec.LastHotSlot-spec.FirstHotSlot+1, errdefs.ErrResourceExhausted)
}

// drop unplugs a disk that no container has. What fails is tried again.
func (p *pod) drop(ctx context.Context, id string) error {
	err := p.dropOnce(ctx, id)
	if err != nil {
		p.removals.later("disk "+id, func(ctx context.Context) error { return p.dropDoubtful(ctx, id) })
	}
	return err
}

// dropOnce is one try. A guest that is asked to let go of a disk may do so at any time: from then on it is doubtful.
func (p *pod) dropOnce(ctx context.Context, id string) error {
	p.doubtful[id] = true
	err := p.unplug(ctx, id)
	if err == nil {
		delete(p.doubtful, id)
	}
	return err
}

func (p *pod) dropDoubtful(ctx context.Context, id string) error {
	if err := p.changing.Take(ctx); err != nil {
		return err
	}
	defer p.changing.Give()
	if !p.doubtful[id] {
		return nil
	}
	return p.dropOnce(ctx, id)
}

// unplug is one try of drop. Only a disk that the VMM has let go of leaves the journal: its slot is used again then.
func (p *pod) unplug(ctx context.Context, id string) error {
	machine, _ := p.vm.current()
	err := failpoint.Record(podPoint, "RemoveDisk", func() error { return machine.RemoveDisk(ctx, id) })
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("unplug disk %s: %w", id, err)
	}
	gone, err := machine.DiskEjected(ctx, id)
	if err == nil && !gone {
		err = fmt.Errorf("the guest has not let go of it: %w", errdefs.ErrUnavailable)
	}
	if err != nil {
		return fmt.Errorf("unplug disk %s: %w", id, err)
	}
	if err := p.flushUnplugged(id); err != nil {
		p.vm.log.Warn("unplug disk", "disk", id, "error", err)
	}
	return p.vm.write(func(j *journal.Journal) {
		s := j.Spec.Clone()
		s.Disks = slices.DeleteFunc(s.Disks, func(d spec.Disk) bool { return d.ID == id })
		j.Spec = s
		j.Disks = slices.DeleteFunc(slices.Clone(j.Disks), func(d journal.Disk) bool { return d.ID == id })
	})
}

// forget removes a container from the journal. Its disks stay plugged in: the next container of the image waits for
// nothing. A VM that has ended is freed as a whole, and its directory may be gone.
func (p *pod) forget(ctx context.Context, t *Task) error {
	if _, state := p.vm.current(); state.over() {
		return nil
	}
	if err := p.changing.Take(ctx); err != nil {
		return err
	}
	defer p.changing.Give()
	switch _, state := p.vm.current(); {
	case state.over():
		return nil
	case state == Created || state == Starting: // of a pod that is restored: the snapshot has the container
		return p.unbind(t)
	case state != Running: // its snapshot has as many containers as its Spec
		return fmt.Errorf("forget container %s: VM %s is %s: %w", t.id, p.vm.id, state, errdefs.ErrUnavailable)
	}
	p.vm.mu.Lock()
	var end *journal.Exit
	if t.init != nil && t.init.exited && t.init.started {
		end = &journal.Exit{Status: t.init.status, At: t.init.exitedAt}
	}
	p.vm.mu.Unlock()
	err := p.vm.write(func(j *journal.Journal) {
		switch {
		case end != nil:
			j.NoteEnd(t.member.name, *end)
		case t.member.ended != nil: // it has not been told
			j.OweEnd(t.member.name, *t.member.ended)
		}
		forgetGuest(j, t.guest)
	})
	if err == nil {
		p.releaseDevices(ctx)
	}
	return err
}

// forgetGuest removes a container from j, which is about to be written.
func forgetGuest(j *journal.Journal, guest string) {
	s := j.Spec.Clone()
	s.Pod.Containers = slices.DeleteFunc(s.Pod.Containers, func(m spec.Member) bool { return m.Guest == guest })
	j.Spec = s
	j.Members = slices.DeleteFunc(slices.Clone(j.Members), func(m journal.Member) bool { return m.Guest == guest })
}
