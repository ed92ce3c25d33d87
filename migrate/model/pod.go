package model

// The wake of a pod, as a search of its own. A client of CRI makes the pod's sandbox and starts its tasks. Where that
// is given up, it does so again on another node. A Start arms its task. The VM runs when all are armed, after the
// shim's commit. Starts come late or twice. Tasks are killed, shims die, a node reboots, the operation is called off.
// The driver looks at the node, and what it has seen may be old when it acts.

// Mutations of a pod's wake.
const (
	RunPartlyArmed  Mutation = "run-partly-armed"  // the last container's Start lets the VM run, whatever else is armed
	ArmByName       Mutation = "arm-by-name"       // a Start for the sandbox before arms a task of this one
	CommitAfterKill Mutation = "commit-after-kill" // the end of an armed task does not give the wake up
	SuccessByArming Mutation = "success-by-arming" // the driver takes "all armed" for "it runs"
)

// Violations of a pod's wake, in addition to those of the hand-over.
const (
	RunsUnarmed = "runs with a task that is not armed"
	SaysItRan   = "the wake succeeded, and the VM never ran"
)

const (
	podTasks     = 3 // the sandbox, and the containers that ran in the snapshot
	podSandboxes = 2 // one after the other, on two nodes
)

// tasks of a sandbox, a bit for each.
type tasks uint8

const all tasks = 1<<podTasks - 1

// shim of a sandbox.
type shim uint8

const (
	absent shim = iota
	filled      // from the snapshot; paused
	owning      // it has committed, and does not run the VM yet
	runs        // the VM runs
	gaveUp      // fenced: it never runs
	lostVM      // its host is gone, after the commit
)

// sandbox of the pod. gone are tasks that were armed and have ended.
type sandbox struct {
	shim              shim
	sent, armed, gone tasks
	seen              bool // the driver has looked, and found the VM running
}

// podState is everything. by is the sandbox that an open operation is of, and that the record gave the VM to once
// committed: its number from 1.
type podState struct {
	sandboxes       [podSandboxes]sandbox
	open, committed bool
	by, made        uint8
	succeeded, ran  bool
	reboots         uint8
}

func (s podState) with(i int, b sandbox) podState {
	s.sandboxes[i] = b
	return s
}

func (s podState) runners() (n int) {
	for _, b := range s.sandboxes {
		if b.shim == runs {
			n++
		}
	}
	return n
}

func (s podState) broken() (names []string) {
	for _, b := range s.sandboxes {
		if b.shim == runs && (b.armed&b.sent != all || b.gone != 0) {
			names = append(names, RunsUnarmed)
		}
	}
	if s.runners() > 1 {
		names = append(names, TwoRunners)
	}
	if s.succeeded && !s.ran {
		names = append(names, SaysItRan)
	}
	if by := s.by; s.committed && s.reboots == 0 && s.sandboxes[by-1].shim != owning && s.sandboxes[by-1].shim != runs {
		names = append(names, Lost)
	}
	return names
}

// settled: nothing is open, and the snapshot or a node has the VM.
func (s podState) settled() bool {
	if s.open {
		return false
	}
	return !s.committed || s.sandboxes[s.by-1].shim == runs || s.sandboxes[s.by-1].shim == lostVM
}

// ExplorePod searches all states of a pod's wake.
func ExplorePod(m Mutation) Result {
	return search(podState{}, func(s podState, to func(string, podState)) { podSteps(s, m, to) }, podState.broken,
		podState.settled)
}

func podSteps(s podState, m Mutation, to func(string, podState)) {
	if int(s.made) < podSandboxes && !s.open && !s.committed { // its Create finds no other node at work, and opens a wake
		after := s.with(int(s.made), sandbox{shim: filled})
		after.made, after.by, after.open = s.made+1, s.made+1, true
		to("K.create", after)
	}
	for i := range int(s.made) {
		client(s, m, i, to)
		podOf(s, m, i, to)
	}
	driver(s, m, to)
}

// client of CRI: it sends Starts, which come at any time and any number of times, and ends tasks.
func client(s podState, m Mutation, i int, to func(string, podState)) {
	for t := tasks(1); t < all; t <<= 1 {
		b := s.sandboxes[i]
		if b.sent&t == 0 {
			b.sent |= t
			to("K.start", s.with(i, b))
		}
		if b = s.sandboxes[i]; b.shim == filled && b.armed&t != 0 {
			after := s
			b.gone |= t
			if m != CommitAfterKill {
				b.shim = gaveUp
				after = s.closed(i)
			}
			to("K.kill", after.with(i, b))
		}
		b = s.sandboxes[i]
		meant := b.sent&t != 0 || m == ArmByName && i > 0 && s.sandboxes[i-1].sent&t != 0
		if b.shim == filled && meant && b.gone&t == 0 {
			b.armed |= t
			to("D.arm", s.with(i, b))
		}
	}
}

// closed is the state once the shim has given up the operation that is its own.
func (s podState) closed(i int) podState {
	if s.open && !s.committed && int(s.by) == i+1 {
		s.open = false
	}
	return s
}

// podOf is the shim of a sandbox, and its host.
func podOf(s podState, m Mutation, i int, to func(string, podState)) {
	b := s.sandboxes[i]
	ready := b.armed == all || m == RunPartlyArmed && b.armed&(1<<(podTasks-1)) != 0
	after := s
	switch {
	case b.shim == filled && ready && s.open && !s.committed && int(s.by) == i+1:
		b.shim, after.committed = owning, true
		to("D.commit", after.with(i, b))
	case b.shim == filled && ready: // the record refuses
		b.shim = gaveUp
		to("D.refused", after.with(i, b))
	case b.shim == owning: // it, or its successor
		b.shim, after.ran = runs, true
		to("D.run", after.with(i, b))
	}
	if b = s.sandboxes[i]; b.shim == filled {
		b.shim = gaveUp
		to("D.shimDies", s.closed(i).with(i, b))
	}
	if b = s.sandboxes[i]; s.reboots < maxReboots && (b.shim == owning || b.shim == runs) {
		after = s
		after.reboots++
		b.shim = lostVM
		to("D.reboot", after.with(i, b))
	}
}

// driver of the operation.
func driver(s podState, m Mutation, to func(string, podState)) {
	if !s.open {
		return
	}
	after, i := s, int(s.by)-1
	b := s.sandboxes[i]
	if b.shim == runs || m == SuccessByArming && b.armed == all {
		b.seen = true
		to("C.look", s.with(i, b))
	}
	after.open = false
	switch {
	case !s.committed:
		to("C.abort", after)
	case b.shim == lostVM:
		to("C.lost", after)
	}
	if s.committed && s.sandboxes[i].seen {
		after.succeeded = true
		to("C.succeed", after)
	}
}
