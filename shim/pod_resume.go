package shim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/containerd/api/events"
	"github.com/containerd/errdefs"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/guest/client"
	"godwit.dev/godwit/internal/failpoint"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/stdio"
)

// resumed fills in what a snapshot says of the containers of a pod, and answers the journal that it is of. The function
// at answers where a container that runs stands.
func (p *pod) resumed(resume *journal.Resume, at func(*Task) journal.ResumedMember) *journal.Journal {
	vm := p.vm
	vm.mu.Lock()
	defer vm.mu.Unlock()
	j := *vm.journal.Load()
	if j.Spec.Pod == nil {
		return &j
	}
	tasks := map[string]*Task{}
	for _, t := range vm.tasks {
		tasks[t.guest] = t
	}
	for _, m := range j.Spec.Pod.Containers {
		var r journal.ResumedMember
		switch t := tasks[m.Guest]; {
		case t == nil: // no client knows it any more
			r.Ended = &journal.Exit{Status: killed, At: time.Now()}
		case t.init.exited:
			r.Ended = &journal.Exit{Status: t.init.status, At: t.init.exitedAt}
		default:
			r = at(t)
		}
		r.Guest = m.Guest
		if resume.Members = append(resume.Members, r); r.Ended != nil {
			j.NoteEnd(m.Name, *r.Ended)
		}
	}
	resume.Ended, resume.Issued, resume.Volumes = j.Ended, j.Spec.Pod.Issued, volumeIDs(j.Spec.Pod)
	return &j
}

// pause pauses the VM. What the containers of a pod do from here to the pause is told where the pod goes.
func (p *pod) pause(pause func() error) error {
	if !p.vm.isPod() {
		return pause()
	}
	return failpoint.Record(podPoint, "Pause", pause)
}

// standing is where the streams of a container stand, which flow no more from here on. One whose end the guest has
// told, and CRI not yet, is among them: where it goes the guest tells it again, after the rest of its output.
func standing(t *Task) journal.ResumedMember { return journal.ResumedMember{Init: t.init.pump.Stop()} }

// capturable names what of a container is in the way of an operation; vm.mu is held.
func (m *member) capturable() error {
	t := m.t
	switch {
	case t.init != nil && t.init.exited:
		return nil
	case t.state != TaskRunning || !t.init.started:
		return fmt.Errorf("container %s is %s, and not started yet: %w", t.id, t.state, errBusy)
	}
	return nil
}

// leavable says whether a snapshot can have all of a pod's VM, and whether the VM is found again outside its sandbox.
func (p *pod) leavable() error {
	sp := p.vm.spec()
	if err := stays(sp); err != nil {
		return err
	}
	if sp.Pod == nil || sp.Annotations[spec.AnnotationVM] != "" {
		return nil
	}
	return fmt.Errorf("it is pod %s/%s without a name for its VM: give the pod annotation %s, by which its next sandbox "+
		"finds the VM: %w", sp.Pod.Namespace, sp.Pod.Name, spec.AnnotationVM, errdefs.ErrFailedPrecondition)
}

// resumedMember is a container that a Start of the VM takes up again.
type resumedMember struct {
	task    *Task
	streams *stdio.Streams
}

// armedMembers are the containers that run together with the VM. CRI may be creating another one at this moment.
func (p *pod) armedMembers() (all []*Task) {
	p.vm.mu.Lock()
	defer p.vm.mu.Unlock()
	for _, t := range p.vm.tasks {
		if t.member != nil && t.member.ended == nil && t.state == TaskArmed {
			all = append(all, t)
		}
	}
	return all
}

// openMembers opens the streams of the containers that ran in the snapshot. A client that waits for one finds it at
// the end of the Start.
func (s *starting) openMembers(open func(*Task) (*stdio.Streams, error)) error {
	for _, t := range s.vm.pod.armedMembers() {
		st, err := open(t)
		if err != nil {
			return fmt.Errorf("open the streams of container %s: %w", t.id, err)
		}
		s.members = append(s.members, resumedMember{t, st})
	}
	return nil
}

// checkMembers wants all containers in the guest that ran in the snapshot.
func (s *starting) checkMembers(all []*agentv1.Process) error {
	for _, m := range s.members {
		if !hasProcess(all, m.task.guest) {
			return fmt.Errorf("the restored guest has no container %s: %w", m.task.guest, errdefs.ErrDataLoss)
		}
	}
	return nil
}

// attachMembers makes the containers flow from where they stood; vm.mu is held.
func (s *starting) attachMembers(r *journal.Resume) {
	for _, m := range s.members {
		from := client.Offsets{}
		if was := r.Member(m.task.guest); was != nil {
			from = was.Init
		}
		m.task.init.started, m.task.init.pump = true, stdio.NewPump(m.task.guest, m.streams, from)
	}
}

// runMembers makes the tasks running ones, together with the VM; vm.mu is held.
func (s *starting) runMembers() (err error) {
	for _, m := range s.members {
		err = errors.Join(err, m.task.setState(TaskRunning))
		s.vm.events.Send(&events.TaskStart{ContainerID: m.task.id, Pid: m.task.pid()})
	}
	return err
}

// closeMembers is for a Start that failed.
func (s *starting) closeMembers() {
	for _, m := range s.members {
		m.streams.Close()
	}
}

// startEnded answers for a container that had ended in the snapshot: its task ends as it did, and runs nothing.
func (m *member) startEnded(ctx context.Context) error {
	t := m.t
	t.vm.mu.Lock()
	var err error
	switch {
	case t.state != TaskCreated:
		err = fmt.Errorf("it is %s: %w", t.state, errdefs.ErrFailedPrecondition)
	case !t.init.started: // else another Start ends it
		err = m.notKilled()
	}
	if err != nil {
		t.vm.mu.Unlock()
		return fmt.Errorf("start task %s: %w", t.id, err)
	}
	t.init.started = true
	t.vm.events.Send(&events.TaskStart{ContainerID: t.id, Pid: t.pid()})
	t.vm.mu.Unlock()
	m.endCreated(ctx, m.ended.Status, m.ended.At)
	return nil
}

// execRuns is the class of an exec that runs: those of a pod may be probes, which are waited for. vm.mu is held.
func (p *pod) execRuns() error {
	if p.vm.isPod() {
		return errBusy
	}
	return errdefs.ErrFailedPrecondition
}

// isInit reports whether a process of the guest is the init of a pod's sandbox, or of one of its containers.
func (p *pod) isInit(guest string) bool {
	sp := p.vm.spec().Pod
	return sp != nil && (guest == spec.SandboxProcess || sp.Member(guest) != nil)
}
