package shim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/shim/bundle"
	"godwit.dev/godwit/shim/journal"
)

// plugDevices plugs in the block devices of the node that the container has, as such or by the file system on them.
// The caller holds changing.
func (c *memberCreation) plugDevices(ctx context.Context) error {
	m := c.bundle.Member
	for _, d := range m.Devices {
		if err := c.vm.pod.addDevice(ctx, d, spec.TypeRaw); err != nil {
			return err
		}
	}
	for _, v := range m.Volumes {
		if v.Device == nil {
			continue
		}
		if err := c.vm.pod.addDevice(ctx, *v.Device, v.Filesystem); err != nil {
			return fmt.Errorf("volume %s: %w", v.Source, err)
		}
	}
	return nil
}

// addDevice plugs in a device, unless another container of the pod has it with the same use. One of which it is not
// known whether the VMM has it is plugged in anew.
func (p *pod) addDevice(ctx context.Context, d bundle.NodeDevice, use string) error {
	want := d.Disk(use)
	if have := p.vm.spec().Disk(want.ID); have != nil && !p.doubtful[want.ID] {
		if have.ReadOnly == want.ReadOnly && have.Type == want.Type {
			return nil
		}
		if p.vm.spec().Pod.Uses(want.ID) {
			return fmt.Errorf("device %s: another container of pod %s has it writable and this one read-only, or as a device "+
				"and this one as a file system: give both the same: %w", d.Path, p.vm.id, errdefs.ErrFailedPrecondition)
		}
		if err := p.drop(ctx, want.ID); err != nil {
			return err
		}
	}
	_, err := p.add(ctx, want, d.Path)
	return err
}

// openDisk opens what becomes a disk. No other may write to a device that the VM writes to, neither another pod nor
// the node that has its file system mounted.
func openDisk(d spec.Disk, path string) (*os.File, error) {
	flags := os.O_RDONLY
	if !d.ReadOnly {
		flags = os.O_RDWR
	}
	if d.Node && !d.ReadOnly {
		flags |= unix.O_EXCL
	}
	f, err := os.OpenFile(path, flags, 0)
	if errors.Is(err, unix.EBUSY) {
		return nil, fmt.Errorf("device %s is in use on the node, by another pod or as a mounted file system: stop what uses "+
			"it: %w", path, errdefs.ErrFailedPrecondition)
	}
	return f, err
}

// releaseDevices unplugs the devices of the node that no container has any more. What fails is tried again: a device
// that the VM has still cannot be used on the node, and keeps the pod there.
func (p *pod) releaseDevices(ctx context.Context) {
	if !p.vm.inState(Running) { // they go with the VM
		return
	}
	for _, id := range p.vm.spec().NodeDevices() {
		if err := p.releaseDevice(ctx, id); err != nil {
			p.vm.log.Warn("unplug device", "disk", id, "error", err)
		}
	}
}

// releaseDevices undoes plugDevices for a container that has no id yet: takeBack does so for any other.
func (c *memberCreation) releaseDevices(ctx context.Context) error {
	p := c.vm.pod
	if c.task.guest != "" {
		return nil
	}
	err := p.changing.Take(ctx)
	if err != nil {
		p.removals.later("devices of container "+c.task.id, c.releaseDevices)
		return err
	}
	defer p.changing.Give()
	p.releaseDevices(ctx)
	return nil
}

func (p *pod) releaseDevice(ctx context.Context, id string) error {
	for _, v := range p.vm.spec().Pod.Volumes {
		if v.Disk != id || p.vm.spec().Pod.Mounts(v.ID) {
			continue
		}
		if err := p.removeVolume(ctx, v.ID); err != nil {
			p.removals.later("device "+id, func(ctx context.Context) error {
				if err := p.changing.Take(ctx); err != nil {
					return err
				}
				defer p.changing.Give()
				return p.releaseDevice(ctx, id)
			})
			return err
		}
	}
	if p.vm.spec().Pod.Uses(id) {
		return nil
	}
	return p.drop(ctx, id)
}

// removeVolume has the guest unmount a volume, and forgets it.
func (p *pod) removeVolume(ctx context.Context, id string) error {
	_, err := p.vm.guest().RemoveVolume(ctx, &agentv1.RemoveVolumeRequest{Id: id})
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("remove volume %s: %w", id, err)
	}
	return p.vm.write(func(j *journal.Journal) {
		s := j.Spec.Clone()
		s.Pod.Volumes = slices.DeleteFunc(s.Pod.Volumes, func(v spec.Volume) bool { return v.ID == id })
		j.Spec, j.Volumes = s, maps.Clone(j.Volumes)
		maps.DeleteFunc(j.Volumes, func(_, have string) bool { return have == id })
	})
}

// flushUnplugged has the node write what it holds of a device that was unplugged.
func (p *pod) flushUnplugged(id string) error {
	j := p.vm.journal.Load()
	if d := j.Spec.Disk(id); d == nil || !d.Node || d.ReadOnly {
		return nil
	}
	at := slices.IndexFunc(j.Disks, func(d journal.Disk) bool { return d.ID == id })
	if at < 0 {
		return nil
	}
	f, err := os.Open(j.Disks[at].Path)
	if err != nil {
		return fmt.Errorf("flush device: %w", err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return fmt.Errorf("flush device %s: %w", f.Name(), err)
	}
	return nil
}

// flushBound is what a guest has to write back what the devices of its node do not have yet. It is part of the time
// that a guest has after its init was killed.
const flushBound = 10 * time.Second

// flush has the guest write to the devices of the node, before the VM ends.
func (p *pod) flush(ctx context.Context) {
	agent := p.vm.guest()
	if !p.vm.isPod() || len(p.vm.spec().NodeDevices()) == 0 || agent == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, flushBound)
	defer cancel()
	if _, err := agent.Sync(ctx, &agentv1.SyncRequest{}); err != nil {
		p.vm.log.Warn("guest does not flush the devices of the node", "error", err)
	}
}

// devicesOf are the devices of a container, as the guest is told of them.
func devicesOf(s *spec.Spec, m *spec.Member) (all []*agentv1.Device) {
	for _, d := range m.Devices {
		disk := s.Disk(d.Disk)
		all = append(all, &agentv1.Device{
			Serial: disk.Serial, Path: d.Path, Mode: d.Mode, Uid: d.UID, Gid: d.GID, ReadOnly: disk.ReadOnly,
		})
	}
	return all
}

// stays refuses a VM that has block devices of its node, by their names: no snapshot has what is in them, and another
// node does not have them.
func stays(s *spec.Spec) error {
	ids := s.NodeDevices()
	if len(ids) == 0 {
		return nil
	}
	var names []string
	for _, m := range s.Pod.Containers {
		for _, d := range m.Devices {
			names = append(names, fmt.Sprintf("device %s of container %s", d.Path, m.Name))
		}
		for _, v := range m.Mounts {
			if s.Pod.Volume(v.Volume).Kind == spec.VolumeMounted {
				names = append(names, fmt.Sprintf("volume %s of container %s", v.Target, m.Name))
			}
		}
	}
	if len(names) == 0 { // its guest has not let go of them
		names = ids
	}
	return fmt.Errorf("it has block devices of its node, which no snapshot has (%s): delete these containers before, or "+
		"use a pod without such volumes: %w", strings.Join(names, ", "), errdefs.ErrFailedPrecondition)
}
