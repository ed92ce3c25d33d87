package shim

import (
	"context"
	"fmt"
	"maps"

	"github.com/containerd/errdefs"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/internal/failpoint"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/steps"
)

// name gives the container's volumes their ids: the one that another container of the pod has for the same source, or a
// new one. It changes p and j, which are about to be written.
func (c *memberCreation) name(p *spec.Pod, j *journal.Journal) []spec.VolumeMount {
	j.Volumes = maps.Clone(j.Volumes)
	if j.Volumes == nil {
		j.Volumes = map[string]string{}
	}
	var mounts []spec.VolumeMount
	for i, v := range c.bundle.Member.Volumes {
		id, known := j.Volumes[v.Source]
		if !known {
			id = freeVolumeID(p)
			v.Volume.ID = id
			p.Volumes, j.Volumes[v.Source] = append(p.Volumes, v.Volume), id
		}
		m := c.bundle.Member.Container.Mounts[i]
		m.Volume = id
		mounts = append(mounts, m)
	}
	return mounts
}

// checkMapped refuses a volume whose owners are ids of the containers for one container, and of the host for another:
// the guest makes its files once.
func (c *memberCreation) checkMapped() error {
	j := c.vm.journal.Load()
	for i, v := range c.bundle.Member.Volumes {
		have := j.Spec.Pod.Volume(j.Volumes[v.Source])
		if have == nil || have.Mapped == v.Mapped {
			continue
		}
		target := c.bundle.Member.Container.Mounts[i].Target
		return fmt.Errorf("mount %s: another container of the pod has this volume with uidMappings and gidMappings, or "+
			"without them: give all mounts of it the same: %w", target, errdefs.ErrInvalidArgument)
	}
	return nil
}

// freeVolumeID answers an id that no volume of the pod has: those of devices go again.
func freeVolumeID(p *spec.Pod) string {
	for n := len(p.Volumes) + 1; ; n++ {
		if id := fmt.Sprintf("v%d", n); p.Volume(id) == nil {
			return id
		}
	}
}

// volumes makes the container's volumes in the guest. One that is there stays as it is.
func (c *memberCreation) volumes(ctx context.Context, _ *steps.Undo) error {
	agent, sp := c.vm.guest(), c.vm.spec()
	p := sp.Pod
	for i, m := range p.Member(c.task.guest).Mounts {
		v := p.Volume(m.Volume)
		r := &agentv1.AddVolumeRequest{
			Id: v.ID, Kind: guestKind(v.Kind), Size: v.Size, Mode: v.Mode, Uid: v.UID, Gid: v.GID, Options: v.Options,
		}
		if v.Mapped {
			r.Uid, r.Gid = p.Users.Owner(v.UID, v.GID)
		}
		if v.Kind == spec.VolumeMounted {
			d := sp.Disk(v.Disk)
			r.Disk = &agentv1.Disk{Serial: d.Serial, Type: d.Type, ReadOnly: d.ReadOnly}
		}
		err := failpoint.Record(podPoint, "AddVolume", func() error { _, err := agent.AddVolume(ctx, r); return err })
		if err == nil && v.Kind == spec.VolumeSynced {
			source := c.bundle.Member.Volumes[i].Source
			err = c.vm.pod.sync(ctx, agent, v.ID, source)
		}
		if err != nil {
			return fmt.Errorf("mount %s: %w", m.Target, err)
		}
	}
	select {
	case c.vm.pod.added <- struct{}{}:
	default:
	}
	return nil
}

// guestKind is where the guest keeps a volume. What is kept fresh may be secret: it reaches no disk.
func guestKind(kind string) string {
	if kind == spec.VolumeSynced {
		return spec.VolumeMemory
	}
	return kind
}

func volumeMounts(p *spec.Pod, mounts []spec.VolumeMount) (all []*agentv1.VolumeMount) {
	for _, m := range mounts {
		all = append(all, &agentv1.VolumeMount{Volume: m.Volume, Path: m.Path, Target: m.Target, Options: m.Options,
			Map: p.Volume(m.Volume).IsMappedDisk()})
	}
	return all
}
