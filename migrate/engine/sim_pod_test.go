package engine

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/moves"
	"godwit.dev/godwit/api/spec"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// podHistories are played by a test that is not told how many.
const podHistories = 100

var podRuns = flag.Uint64("sim.pods", podHistories, "histories of a pod to play")

// Histories of a pod. It sleeps, wakes and moves as any VM, but CRI alone makes its sandbox and starts its containers
// on a node. A Start arms. Which tasks a pod waits for is the real rule, spec.Pod.Missing.

// simContainers are the pod's: each has to be armed, and so has the sandbox.
var simContainers = &spec.Pod{Containers: []spec.Member{{Guest: "c1", Name: "redis"}, {Guest: "c2", Name: "sidecar"},
	{Guest: "c3", Name: "logger"}}}

// simTaskIDs are the guest's names of the pod's tasks.
var simTaskIDs = []string{spec.SandboxProcess, "c1", "c2", "c3"}

// simPod is what a node has of a pod that comes to it.
type simPod struct {
	sandbox  *simSandbox    // nil: the VM that is here was booted
	self     bool           // the shim has opened the wake itself, and has to close it
	expected *machinev1.Ref // in the memory of its daemon: the move that was ordered
	busy     bool           // a kubelet is at it
	departed *simSandbox    // that of a VM which leaves, as containerd has it marked
}

// simSandbox is a sandbox that CRI has made for a VM that comes from elsewhere. Its tasks are its own: no Start for
// another sandbox means them.
type simSandbox struct {
	ref   *machinev1.Ref
	move  bool
	armed map[string]bool
	place string // its pod
}

func (n *simNode) isPod() bool { return n.rounds != nil && n.rounds.pods }

// missing are the tasks that keep the pod from running, as its shim sees it.
func (p *simPod) missing() []string {
	if p.sandbox == nil {
		return nil
	}
	armed := p.sandbox.armed
	return simContainers.Missing(armed[spec.SandboxProcess], func(guest string) bool { return armed[guest] })
}

func (p *simPod) forget(ref *machinev1.Ref) {
	if p.expected.GetOperation() == ref.GetOperation() && p.expected.GetAttempt() == ref.GetAttempt() {
		p.expected = nil
	}
}

// allArmed watches over a pod that begins to run.
func (n *simNode) allArmed() {
	if sb := n.pod.sandbox; n.isPod() && sb != nil && len(sb.armed) < len(simTaskIDs) {
		n.violated("the pod runs on %s with %v alone armed", n.name, slices.Sorted(maps.Keys(sb.armed)))
	}
}

// ranBefore watches over a wake that is said to have succeeded.
func (s *simulation) ranBefore(op *nodev1.Operation, phase string) {
	if s.rounds != nil && s.rounds.pods && s.rounds.back == 0 && op.GetKind() == nodev1.Kind_KIND_WAKE &&
		phase == "cleaning" && s.gen <= op.GetGeneration() {
		s.violated("wake %s has succeeded, and the VM never ran", op.GetId())
	}
}

// modes of moves that are ordered. A pod is refused the cold one.
func (s *simulation) modes() []string {
	all := []string{moves.ModeLive, moves.ModeCold}
	if s.rounds != nil && s.rounds.pods {
		all = append(all, moves.ModeLive, moves.ModeLive)
	}
	return all
}

// preparePod answers for what the pod waits here, until all its tasks are armed.
func (n *simNode) preparePod(ref *machinev1.Ref, answer *nodev1.PeerPrepareResponse) (*nodev1.PeerPrepareResponse,
	error) {
	n.pod.expected = ref
	arrives := n.record == recordIncoming || n.record == recordReady
	switch {
	case n.record == recordFenced && n.holds(ref):
		return nil, refused(n, "prepare a pod whose sandbox was given up")
	case arrives && !n.holds(ref), n.record == recordOwn && n.vmm != vmmDead, n.record == recordSending,
		n.record == recordPrepared:
		return nil, refused(n, "prepare a pod")
	case arrives && len(n.pod.missing()) == 0:
		return answer, nil
	}
	return &nodev1.PeerPrepareResponse{Waits: "it waits for CRI"}, nil
}

// byCRI is a call that CRI makes. It ends with the node's programs.
func (k simTasks) byCRI(call string, work func() error) error {
	err := fmt.Errorf("%s: containerd of %s died: %w", call, k.name, errdefs.ErrUnavailable)
	for a := k.spawn(call, k.name, func() { err = k.do(call, work) }); !a.over; {
		k.yield()
	}
	return err
}

// runp is CRI's RunPodSandbox: the shim's Create takes up the open wake or move, or opens a wake itself.
func (k simTasks) runp(place string) (made *simSandbox, err error) {
	err = k.byCRI("runp", func() error {
		rec, err := k.get()
		if err != nil {
			return err
		}
		op, self := rec.GetOperation(), rec.GetOperation() == nil
		if !self {
			err = cmp.Or(k.takesUp(op), k.fits(rec, place))
		}
		if k.late(); err != nil || k.headless || !slices.Contains([]string{"", recordFenced, recordReleased}, k.record) ||
			k.record == recordFenced && (k.pod.self || k.holds(ref(op))) {
			return errors.Join(err, refused(k.simNode, "runp"))
		}
		if k.write("", nil); self {
			op, err = k.openWake(rec)
		}
		if err != nil || k.record != "" {
			return errors.Join(err, refused(k.simNode, "runp"))
		}
		sb := &simSandbox{ref: ref(op), move: op.GetKind() == nodev1.Kind_KIND_MIGRATE, armed: map[string]bool{},
			place: place}
		k.trace = append(k.trace, fmt.Sprintf("a sandbox at %s for %s", k.name, op.GetId()))
		k.vmm, k.sent, k.task, k.pod.sandbox, k.pod.self = vmmOff, "", true, sb, self
		if k.write(recordIncoming, sb.ref); !sb.move {
			err = k.fill(sb, op.GetDigest())
		}
		made = sb
		return err
	})
	return made, err
}

// fill brings the snapshot of a wake.
func (k simTasks) fill(sb *simSandbox, digest string) error {
	count, there := k.blobs[digest]
	if k.record != recordIncoming || !k.holds(sb.ref) {
		return refused(k.simNode, "fill")
	}
	if !there {
		_, _ = k.fence(sb.ref)
		k.closeWake()
		return fmt.Errorf("runp: %s: %w", digest, errdefs.ErrNotFound)
	}
	k.count, k.vmm, k.sent = count, vmmPaused, digest
	k.write(recordReady, sb.ref)
	return nil
}

// takesUp wants an order for this node that has not been given up here. A move has to be known to the daemon, too.
func (k simTasks) takesUp(op *nodev1.Operation) error {
	known := k.pod.expected.GetOperation() == op.GetId() && k.pod.expected.GetAttempt() == op.GetAttempt()
	switch {
	case op.GetDestination() != k.name, !abortable(op.GetPhase()),
		op.GetKind() != nodev1.Kind_KIND_MIGRATE && (op.GetKind() != nodev1.Kind_KIND_WAKE || !op.GetManaged()):
		return refused(k.simNode, "runp while "+op.GetId()+" is open")
	case op.GetKind() == nodev1.Kind_KIND_MIGRATE && !known:
		return fmt.Errorf("runp: %s has not heard of %s: %w", k.name, op.GetId(), errdefs.ErrUnavailable)
	}
	return nil
}

// openWake is the shim's own, of a snapshot that has the VM.
func (k simTasks) openWake(rec *nodev1.Record) (*nodev1.Operation, error) {
	if rec.GetOwner().GetDigest() == "" || !k.rounds.noticed() {
		return nil, refused(k.simNode, "runp of what does not sleep")
	}
	op := &nodev1.Operation{Id: k.rounds.id("s"), Kind: nodev1.Kind_KIND_WAKE, Attempt: 1, Destination: k.name,
		Digest: rec.GetOwner().GetDigest(), Generation: rec.GetGeneration()}
	records := simRoundRecords{simRecords{RecordsService: k.records, s: k.simulation}, k.simNode}
	_, err := records.Open(context.Background(), &nodev1.OpenRequest{Vm: vm, Operation: op})
	if err == nil {
		_, err = records.Advance(context.Background(), &nodev1.AdvanceRequest{Vm: vm, Operation: op.GetId(), Attempt: 1,
			Generation: op.GetGeneration(), Phase: nodev1.Phase_PHASE_TRANSFERRING})
	}
	return op, err // an open wake that no node has anything of is closed by a round
}

// closeWake closes the wake that the shim of a fence has opened itself, and that nothing came of. What cannot be said
// now stays in the journal.
func (n *simNode) closeWake() {
	if !n.pod.self || n.record != recordFenced {
		return
	}
	sb, to := n.pod.sandbox, nodev1.Phase_PHASE_ABORTING
	records := simRoundRecords{simRecords{RecordsService: n.records, s: n.simulation}, n}
	rec, err := records.Get(context.Background(), &nodev1.GetRequest{Vm: vm})
	op := rec.GetOperation()
	if err == nil && op.GetId() == sb.ref.GetOperation() {
		if op.GetPhase() == nodev1.Phase_PHASE_COMMITTED || op.GetPhase() == nodev1.Phase_PHASE_REVERTING {
			to = nodev1.Phase_PHASE_REVERTING
		}
		_, err = records.Advance(context.Background(), &nodev1.AdvanceRequest{Vm: vm, Operation: op.GetId(),
			Attempt: op.GetAttempt(), Generation: op.GetGeneration(), Phase: to})
		if err == nil {
			_, err = records.Finish(context.Background(), &nodev1.FinishRequest{Vm: vm, Operation: op.GetId(),
				Attempt: op.GetAttempt(), Generation: op.GetGeneration(), Phase: nodev1.Phase_PHASE_FAILED})
		}
	}
	if err == nil && n.pod.sandbox == sb && n.record == recordFenced {
		n.pod.self = false
	}
}

// arm is CRI's Start of a task. The last one lets a pod that wakes run; one that moves waits for the commit.
func (k simTasks) arm(sb *simSandbox, id string) error {
	return k.byCRI("start "+id, func() error {
		waits := k.record == recordReady || k.record == recordIncoming && sb.move
		if !k.task || k.pod.sandbox != sb || !k.holds(sb.ref) || !waits || k.starting {
			return refused(k.simNode, "start "+id)
		}
		before := len(k.pod.missing())
		if sb.armed[id] = true; before > 0 && len(k.pod.missing()) == 0 {
			k.trace = append(k.trace, "all is armed for "+sb.ref.GetOperation())
		}
		if len(k.pod.missing()) == 0 && !sb.move {
			k.spawn("wake", k.name, func() {
				if k.record == recordReady && k.holds(sb.ref) && !k.starting {
					if err := k.wake(sb.ref); err != nil {
						k.closeWake()
					}
				}
			})
		}
		return nil
	})
}

// rm is CRI's end of a task that was armed and has not run: the sandbox never runs the VM.
func (k simTasks) rm(sb *simSandbox) error {
	return k.byCRI("stop", func() error {
		if k.pod.sandbox != sb || !k.holds(sb.ref) || k.record != recordReady && k.record != recordIncoming || k.starting {
			return refused(k.simNode, "stop")
		}
		_, _ = k.fence(sb.ref)
		k.trace = append(k.trace, "a kubelet has given up "+sb.ref.GetOperation())
		k.closeWake()
		return nil
	})
}

// kubelet makes the pod on a node, or goes on where it was left off. That it is wanted there was read before, or is
// not true at all.
func (r *simRounds) kubelet(n *simNode) {
	k := simTasks{n.round.host}
	if n.pod.busy || !r.noticed() {
		return
	}
	n.pod.busy = true
	r.s.spawn("kubelet", "kubelet", func() {
		defer func() { n.pod.busy = false }()
		rec, _ := n.get()
		sb, op := n.pod.sandbox, rec.GetOperation()
		if k.late(); n.record != recordIncoming && n.record != recordReady {
			if op.GetDestination() != n.name && (op != nil || rec.GetOwner().GetDigest() == "") && r.s.rng.IntN(20) > 0 {
				return
			}
			var err error
			place := ""
			if r.places != nil {
				place = r.places.at(n.name, op)
			}
			if sb, err = k.runp(place); err != nil {
				return
			}
		}
		ids := slices.Clone(simTaskIDs)
		r.s.rng.Shuffle(len(ids)-1, func(i, j int) { ids[i+1], ids[j+1] = ids[j+1], ids[i+1] })
		for _, id := range ids {
			start := func() { _ = k.arm(sb, id) }
			if n.chance(20) {
				r.s.late = append(r.s.late, func() { r.s.spawn("late start", "kubelet", start) })
			}
			start()
			switch end := r.s.rng.IntN(40); {
			case r.s.faults && end < 3: // it goes away
				return
			case r.s.faults && end == 3:
				_ = k.rm(sb)
				return
			}
		}
	})
}

// TestSimulatedPods is TestSimulatedRounds of a pod of three containers: it never runs unless all of its tasks are
// armed, whatever a kubelet does, and when.
func TestSimulatedPods(t *testing.T) {
	before := slog.Default()
	slog.SetDefault(slog.New(slog.DiscardHandler))
	defer slog.SetDefault(before)
	if *simSeed != 0 {
		s := playPods(*simSeed, true)
		t.Logf("%s\nbroken: %q", strings.Join(s.trace, "\n"), s.broken)
		return
	}
	runs, seen := *podRuns, map[string]int{}
	if raced {
		runs = min(runs, 10)
	}
	for seed := uint64(1); seed <= runs; seed++ {
		s := playPods(seed, true)
		if len(s.broken) > 0 && !(*safetyOnly && strings.HasPrefix(s.broken[0], "I4")) {
			t.Fatalf("seed %d: %q", seed, s.broken)
		}
		s.count(seen)
		told := strings.Join(s.trace, "\n")
		for what, text := range map[string]string{"moved": "is released by op", "moves armed": "all is armed for op",
			"own wakes armed": "all is armed for s", "wakes armed": "all is armed for w", "sandboxes": "a sandbox at",
			"given up": "has given up"} {
			seen[what] += strings.Count(told, text)
		}
	}
	t.Logf("%d histories: %v", runs, seen)
	if n := int(runs); !raced && (seen["sandboxes"] < n/2 || seen["moves armed"] < n/8 || seen["moved"] < n/20 ||
		seen["own wakes armed"] < n/25 || seen["wakes armed"] < n/8 || seen["given up"] < n/50) {
		t.Errorf("too little happens: %v", seen)
	}
}
