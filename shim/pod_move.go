package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/containerd/api/events"
	"github.com/containerd/errdefs"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/shim/journal"
)

// A pod moves live once CRI has made its sandbox on the destination and has started all its containers there, which
// arms them. Only then the source sends: the pod stands still for no client. After the commit the controller lets the
// VM run.

// checkAnnounced refuses what a source cannot have said of its pod, and notes which containers have ended there.
func (c *creation) checkAnnounced(sp *spec.Spec, data []byte) error {
	if sp.Pod == nil {
		return nil
	}
	var resume journal.Resume
	if err := json.Unmarshal(data, &resume); err != nil {
		return fmt.Errorf("which of its containers have ended: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	err := errors.Join(resume.Check(), checkResume(&journal.Journal{Resources: journal.Resources{Spec: sp}}, &resume))
	if err != nil {
		return err
	}
	c.next.Resume = journal.Resume{Members: resume.Members}
	c.next.OweEnds(resume.Ended)
	return nil
}

// offer is what Offer answers of the VM: its Spec, and of a pod, which of its containers have ended.
func (p *pod) offer() (sp, ended []byte, err error) {
	var resume journal.Resume
	j := p.resumed(&resume, func(*Task) (at journal.ResumedMember) { return at })
	if sp, err = json.Marshal(j.Spec); err == nil && j.Spec.Pod != nil {
		ended, err = json.Marshal(resume)
	}
	return sp, ended, err
}

// missingHere names the containers of an arriving pod that CRI has not started yet. It fails if the pod that is offered
// now has other containers than the one that was offered when its sandbox was made.
func (p *pod) missingHere(offered []byte) ([]string, error) {
	switch {
	case !p.vm.isPod():
		return nil, nil
	case p.vm.journal.Load().Phase == journal.Fenced || p.vm.inState(Ending) || p.vm.inState(Stopped):
		return nil, fmt.Errorf("a container or the sandbox that waited for pod %s here has ended: %w", p.vm.id,
			errdefs.ErrFailedPrecondition)
	}
	if len(offered) > 0 {
		if err := p.hasStayed(offered); err != nil {
			return nil, err
		}
	}
	p.vm.mu.Lock()
	defer p.vm.mu.Unlock()
	return p.missing(), nil
}

func (p *pod) hasStayed(offered []byte) error {
	now, err := spec.Decode(offered)
	if err != nil || now.Pod == nil {
		return fmt.Errorf("spec: %w: %w", errdefs.ErrInvalidArgument, err)
	}
	announced := p.vm.origin.arrival.announced
	still := *announced // without those that were removed, which is an end as any other
	still.Containers = slices.DeleteFunc(slices.Clone(still.Containers), func(m spec.Member) bool {
		return now.Pod.Member(m.Guest) == nil
	})
	if is := summary(now.Pod); summary(&still) != is {
		return fmt.Errorf("its containers or volumes have changed at its source since its sandbox was made: from %s to %s. "+
			"Order the move again: %w", summary(announced), is, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// summary names the containers of a pod, each with its id in the guest, which is given once, and its volumes.
func summary(p *spec.Pod) string {
	var all []string
	for _, m := range p.Containers {
		all = append(all, m.Name+" ("+m.Guest+")")
	}
	return fmt.Sprintf("%s of %d, volumes [%s]", strings.Join(all, ", "), p.Issued, strings.Join(volumeIDs(p), " "))
}

func volumeIDs(p *spec.Pod) (all []string) {
	for _, v := range p.Volumes {
		all = append(all, v.ID)
	}
	return all
}

// checkArrived refuses a pod that is not the one which was offered when its sandbox was made here: j has what was told.
func (a *arrival) checkArrived(j *journal.Journal, r *journal.Resume) error {
	if j.Spec.Pod == nil {
		return r.Check()
	}
	if err := endRemoved(j.Spec.Pod, r); err != nil {
		return err
	}
	if err := errors.Join(r.Check(), checkResume(j, r)); err != nil {
		return err
	}
	for _, m := range j.Resume.Members {
		if m.Ended != nil && r.EndOf(m.Guest) == nil {
			return fmt.Errorf("container %s had ended when it was offered, and runs: %w", m.Guest, errdefs.ErrDataLoss)
		}
	}
	if issued, volumes := a.announced.Issued, volumeIDs(a.announced); r.Issued != issued ||
		!slices.Equal(r.Volumes, volumes) {
		return fmt.Errorf("its containers or volumes have changed since it was offered: it has given %d ids and has volumes "+
			"%v, offered were %d and %v: %w", r.Issued, r.Volumes, issued, volumes, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// endRemoved adds to r the containers that CRI has removed at the source since the pod was offered. They had ended,
// and end here as those do that ended on the way. Of one that has never run there is no end.
func endRemoved(pod *spec.Pod, r *journal.Resume) error {
	for _, m := range pod.Containers {
		if r.Member(m.Guest) != nil {
			continue
		}
		i := slices.IndexFunc(r.Ended, func(e journal.EndedMember) bool { return e.Name == m.Name })
		if i < 0 {
			return fmt.Errorf("container %s was removed before it ran, since the pod was offered: order the move again: %w",
				m.Name, errdefs.ErrFailedPrecondition)
		}
		r.Members = append(r.Members, journal.ResumedMember{Guest: m.Guest, Ended: &r.Ended[i].Exit})
	}
	return nil
}

// arrived takes up what came last: which containers have ended since the source offered the pod. Their tasks are armed,
// and end once the VM runs.
func (p *pod) arrived(j *journal.Journal, r *journal.Resume) {
	p.vm.mu.Lock()
	defer p.vm.mu.Unlock()
	bound := map[string]bool{}
	for _, t := range p.vm.tasks {
		if t.member == nil {
			continue
		}
		bound[t.member.name] = true
		if end := r.EndOf(t.guest); end != nil && t.member.ended == nil {
			t.member.ended = end
		}
	}
	for _, e := range r.Ended {
		if !bound[e.Name] {
			j.OweEnd(e.Name, e.Exit)
		}
	}
}

// Run lets a pod run that has moved here.
func (m *machineService) Run(ctx context.Context, r *machinev1.RunRequest) (*machinev1.RunResponse, error) {
	return ask(m, func(vm *VM) (*machinev1.RunResponse, error) {
		if err := vm.pod.runMoved(ctx, r.GetRef()); err != nil {
			return nil, fmt.Errorf("run VM %s: %w", vm.id, err)
		}
		vm.mu.Lock()
		defer vm.mu.Unlock()
		return &machinev1.RunResponse{State: string(vm.state)}, nil
	})
}

// movedRun is what lets a pod run that has moved here. It is one for all callers, and does not end with them: a commit
// that was half done would end the move.
type movedRun struct {
	over chan struct{} // closed when err is the answer
	err  error
}

// runMoved begins to let the pod run, or waits for what an earlier call has begun.
func (p *pod) runMoved(ctx context.Context, ref *machinev1.Ref) error {
	run, err := p.beginRun(ref)
	if run == nil || err != nil {
		return err
	}
	select {
	case <-run.over:
		return run.err
	case <-ctx.Done():
		return fmt.Errorf("it begins to run: ask again: %w: %w", errdefs.ErrUnavailable, ctx.Err())
	}
}

// beginRun answers nil if the pod runs already.
func (p *pod) beginRun(ref *machinev1.Ref) (*movedRun, error) {
	vm := p.vm
	vm.mu.Lock()
	defer vm.mu.Unlock()
	j := vm.journal.Load()
	switch {
	case !vm.isPod() || !vm.origin.restored:
		return nil, fmt.Errorf("it is no pod that has moved here: %w", errdefs.ErrFailedPrecondition)
	case vm.state == Running:
		return nil, nil
	case j.Operation != ref.GetOperation() || j.Attempt != ref.GetAttempt() || !j.Move:
		return nil, fmt.Errorf("operation %s, attempt %d does not bring it here: %w", ref.GetOperation(), ref.GetAttempt(),
			errdefs.ErrFailedPrecondition)
	case p.run != nil:
		return p.run, nil
	case vm.owner.state != TaskArmed || len(p.missing()) > 0:
		return nil, fmt.Errorf("not all of its containers are started: %w", errdefs.ErrFailedPrecondition)
	}
	p.run = &movedRun{over: make(chan struct{})}
	go p.runOnce(p.run)
	return p.run, nil
}

// runOnce is bounded up to the commit as a Start of CRI is, and then by that Start itself.
func (p *pod) runOnce(run *movedRun) {
	ctx, cancel := context.WithTimeout(p.vm.life, memberBound)
	defer cancel()
	err := p.vm.owner.start(ctx)
	p.vm.mu.Lock()
	p.run, run.err = nil, err // a Start that was refused may be made again
	p.vm.mu.Unlock()
	close(run.over)
	if err == nil {
		p.settle(p.vm.life)
	}
}

// endDeparted ends the armed tasks of containers that had ended before their pod came: they have been told to run.
func (p *pod) endDeparted(ctx context.Context) {
	for _, t := range p.vm.allTasks() {
		p.vm.mu.Lock()
		over := t.member != nil && t.member.ended != nil && t.state == TaskArmed
		var end journal.Exit
		if over {
			end = *t.member.ended
			over = t.setState(TaskRunning) == nil
			t.init.started = true
			p.vm.events.Send(&events.TaskStart{ContainerID: t.id, Pid: t.pid()})
		}
		p.vm.mu.Unlock()
		if over {
			t.member.end(ctx, end.Status, end.At)
		}
	}
}
