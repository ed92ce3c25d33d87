package shim

import (
	"time"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/guest/client"
	"godwit.dev/godwit/shim/bundle"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/stdio"
)

// A successor of a shim that died knows the containers of a pod by the journal. containerd knows none of them any
// more: they go along when the VM sleeps or moves.

// adoptOwner says which process of the guest is the sandbox's.
func (p *pod) adoptOwner(j *journal.Journal) {
	if j.Spec != nil && j.Spec.Pod != nil {
		p.vm.owner.guest = spec.SandboxProcess
	}
}

// adoptMembers makes a task of each container that the journal names. One that had ended in the snapshot of a wake
// is not taken up: the guest, or the Spec too, has none of it.
func (p *pod) adoptMembers(j *journal.Journal, state TaskState) {
	p.vm.mu.Lock()
	defer p.vm.mu.Unlock()
	for _, has := range j.Members {
		m := j.Spec.Pod.Member(has.Guest)
		if m == nil || j.Resume.EndOf(has.Guest) != nil {
			continue
		}
		t := p.vm.newTask(has.ID)
		t.member = &member{t: t, holder: has.Holder, name: m.Name}
		t.guest, t.prefix, t.stats.of, t.state = has.Guest, has.Guest+"/", has.Guest, state
		t.bundle = &bundle.Bundle{Dir: has.Bundle}
		t.init = t.newProcess("", has.Stdio, nil)
		close(t.created)
	}
}

// keepEnds notes how the containers had ended that are not taken up, for the next time that the pod sleeps or moves.
func (p *pod) keepEnds(r *journal.Resume) {
	if !p.vm.isPod() {
		return
	}
	_ = p.vm.journal.owe("which containers had ended", func(j *journal.Journal) {
		for _, has := range j.Members {
			if m, end := j.Spec.Pod.Member(has.Guest), r.EndOf(has.Guest); m != nil && end != nil {
				j.NoteEnd(m.Name, *end)
			}
		}
	})
}

// reopen opens the streams of the containers that are not met yet.
func (p *pod) reopen() map[*Task]*stdio.Streams {
	all := map[*Task]*stdio.Streams{}
	for _, t := range p.vm.allTasks() {
		if t.member != nil && !t.init.started && !t.member.hasEnded() {
			all[t] = t.reopenStreams()
		}
	}
	return all
}

// reconnect finds the containers again among the guest's processes. One that is not there has ended, and nothing is
// known of how; vm.mu is held.
func (p *pod) reconnect(all []*agentv1.Process, streams map[*Task]*stdio.Streams) {
	for t, st := range streams {
		for _, process := range all {
			if process.GetId() == t.guest {
				t.init.attach(process, st)
			}
		}
		if t.init.started {
			continue
		}
		st.Close()
		t.exit(t.init, killed, time.Now())
		if err := t.setState(TaskStopped); err != nil {
			p.vm.log.Error("end task", "task", t.id, "error", err)
		}
	}
}

// attach makes the process one that runs, from where the guest's streams stand; vm.mu is held.
func (p *process) attach(from *agentv1.Process, st *stdio.Streams) {
	p.started, p.pump = true, stdio.NewPump(p.guest, st, client.Offsets{
		Stdin: from.GetStdinOffset(), Stdout: from.GetStdoutOffset(), Stderr: from.GetStderrOffset(),
	})
}
