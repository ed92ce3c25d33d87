package shim

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/internal/failpoint"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/steps"
)

// bind gives a task of a pod that is restored the container of the snapshot that has its name. The guest has that
// container: nothing is made there. The task is not the container's if anything differs that its process was promised.
func (c *memberCreation) bind(ctx context.Context, u *steps.Undo) error {
	vm, image := c.vm, c.askImage(ctx)
	if err := vm.pod.changing.Take(ctx); err != nil {
		return err
	}
	defer vm.pod.changing.Give()
	if !vm.inState(Created) {
		return fmt.Errorf("container %s: pod %s has begun to run meanwhile: make it anew: %w", c.member.Name, vm.id,
			errdefs.ErrFailedPrecondition)
	}
	j := vm.journal.Load()
	m, end := vm.pod.unbound(c.member.Name), j.EndOf(c.member.Name)
	switch {
	case m == nil && (end == nil || vm.pod.twice(c.task)):
		return fmt.Errorf("container %s: snapshot %s of pod %s has none of that name, or a task has it: make it once "+
			"the pod runs: %w", c.member.Name, j.Digest, vm.id, errdefs.ErrFailedPrecondition)
	case end != nil && (m == nil || j.Resume.EndOf(m.Guest) != nil):
		return c.bindEnded(u, end)
	}
	volumes, err := c.fits(m, image)
	if err != nil {
		return fmt.Errorf("restore container %s: %w", m.Name, err)
	}
	if from := c.bundle.Member.Termination; from.Source != "" {
		f, err := os.OpenFile(from.Source, os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil {
			return fmt.Errorf("mount %s: %w", from.Destination, err)
		}
		c.task.member.termination, c.task.member.terminationPath = f, from.Destination
	}
	c.member = *m
	u.Add("let go of container", c.takeBack)
	return c.bound(func(j *journal.Journal) {
		c.task.member.named(m.Guest)
		c.task.member.hadEnded(j.Resume.EndOf(m.Guest))
		j.Volumes = volumes
	})
}

// twice reports whether another task has the container of t's name.
func (p *pod) twice(t *Task) bool {
	p.vm.mu.Lock()
	defer p.vm.mu.Unlock()
	for _, other := range p.vm.tasks {
		if other != t && other.member != nil && other.member.name == t.member.name && other.guest != "" {
			return true
		}
	}
	return false
}

// bindLate is bind in a pod that runs again. Its containers that had ended may be made after those that run: the first
// task of such a name tells that end, and the next one is a new container.
func (c *memberCreation) bindLate(ctx context.Context, u *steps.Undo) error {
	vm := c.vm
	if err := vm.pod.changing.Take(ctx); err != nil {
		return err
	}
	defer vm.pod.changing.Give()
	end := vm.journal.Load().OwedEnd(c.member.Name)
	if end == nil {
		return nil
	}
	c.over = vm.lockAndCall()
	return c.bindEnded(u, end)
}

// bindEnded is bind of a container that had ended before the pod left: the guest has nothing of it any more.
func (c *memberCreation) bindEnded(u *steps.Undo, end *journal.Exit) error {
	u.Add("let go of container", c.takeBack)
	return c.bound(func(j *journal.Journal) {
		s := j.Spec.Clone()
		s.Pod.Issued++
		c.task.member.named(fmt.Sprintf("c%d", s.Pod.Issued))
		c.task.member.hadEnded(end)
		j.Spec = s
		j.TellEnd(c.member.Name)
	})
}

// bound writes down that the task has a container of the snapshot.
func (c *memberCreation) bound(change func(*journal.Journal)) error {
	return failpoint.Record(podPoint, "Bind", func() error {
		return c.task.member.unnamed(c.vm.write(func(j *journal.Journal) {
			change(j)
			j.Members = append(slices.Clone(j.Members), c.onNode())
		}))
	})
}

// onNode is what the journal says of the task.
func (c *memberCreation) onNode() journal.Member {
	return journal.Member{ID: c.task.id, Guest: c.task.guest, Bundle: c.req.GetBundle(), Stdio: c.task.init.stdio}
}

// unbound is the container of the snapshot of that name that no task has: the one that runs there, else the one that
// came last; nil: there is none.
func (p *pod) unbound(name string) (found *spec.Member) {
	j := p.vm.journal.Load()
	for i := range j.Spec.Pod.Containers {
		m := &j.Spec.Pod.Containers[i]
		bound := slices.ContainsFunc(j.Members, func(has journal.Member) bool { return has.Guest == m.Guest })
		if m.Name != name || bound {
			continue
		}
		found = m
		if j.Resume.EndOf(m.Guest) == nil {
			break
		}
	}
	return found
}

// fits refuses a container that is not m by what its process sees. It answers which volume of the pod each source of
// the host is, also those of other containers.
func (c *memberCreation) fits(m *spec.Member, image imageAnswer) (map[string]string, error) {
	if err := c.sameImage(m, image); err != nil {
		return nil, err
	}
	is, was := c.bundle.Member.Container, m
	differs := func(what string, was, is any) error {
		return fmt.Errorf("its %s is %v, the snapshot has %v: make it as it was: %w", what, is, was,
			errdefs.ErrFailedPrecondition)
	}
	switch {
	case is.OCI.Process.Terminal != was.OCI.Process.Terminal:
		return nil, differs("terminal", was.OCI.Process.Terminal, is.OCI.Process.Terminal)
	case c.member.PID != was.PID:
		return nil, differs("pid namespace", was.PID, c.member.PID)
	case len(is.Devices) != len(was.Devices):
		return nil, differs("number of block devices", len(was.Devices), len(is.Devices))
	case len(is.Mounts) != len(was.Mounts):
		return nil, differs("number of volumes", len(was.Mounts), len(is.Mounts))
	}
	volumes := maps.Clone(c.vm.journal.Load().Volumes)
	if volumes == nil {
		volumes = map[string]string{}
	}
	for i, mount := range is.Mounts {
		at := slices.IndexFunc(was.Mounts, func(v spec.VolumeMount) bool { return v.Target == mount.Target })
		if at < 0 {
			return nil, differs("volume at "+mount.Target, "none", "there")
		}
		old, source := was.Mounts[at], c.bundle.Member.Volumes[i]
		kind := c.vm.spec().Pod.Volume(old.Volume).Kind
		if old.Path != mount.Path || kind != source.Kind {
			return nil, differs("volume at "+mount.Target, kind+" "+old.Path, source.Kind+" "+mount.Path)
		}
		if known, ok := volumes[source.Source]; ok && known != old.Volume {
			return nil, differs("volume at "+mount.Target, old.Volume, known)
		}
		volumes[source.Source] = old.Volume
	}
	return volumes, nil
}

// unbind lets another task have the container.
func (p *pod) unbind(t *Task) error {
	p.vm.mu.Lock()
	owed := t.member.ended != nil && (t.init == nil || !t.init.started)
	p.vm.mu.Unlock()
	return p.vm.write(func(j *journal.Journal) {
		if owed {
			j.OweEnd(t.member.name, *t.member.ended)
		}
		j.Members = slices.DeleteFunc(slices.Clone(j.Members), func(m journal.Member) bool { return m.Guest == t.guest })
	})
}
