package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// engine is that of a node: it drives hibernates and wakes, and looks at the node in rounds. What it
// does in the background is an actor each.
func (n *simNode) engine(h *simHost) *Engine {
	e := New(Parts{
		Records: simRoundRecords{simRecords{RecordsService: n.records, s: n.simulation}, n}, Machines: h, Observer: h,
		Tasks: simTasks{h}, Departed: simDeparted{h},
		Snapshots: simRegistry{h: h}, Events: Sinks{}, Store: h,
	}, Options{
		Node: n.name, Repository: func(*nodev1.Record) string {
			return "r/x"
		}, Operation: time.Hour, Step: time.Hour, Abort: time.Hour, AtOnce: 1,
		RetryMin: 1, RetryMax: 1, Retention: Retention{Grace: 4 * roundInterval, Scans: n.name == simNodes[0]},
	})
	e.now = func() time.Time { return n.round.clock }
	e.prompt = time.Hour
	e.background = func(do func()) { n.spawn("drive", n.name, do) }
	return e
}

// impatient is the context of an order that waits for no other operation.
func impatient() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// user orders one hibernate or wake at a node, as its CLI does.
func (r *simRounds) user(n *simNode) {
	r.s.spawn("user", n.name, func() {
		rec, err := n.get()
		if err != nil || n.headless || rec.GetOperation() != nil && r.s.rng.IntN(8) > 0 {
			return
		}
		switch {
		case rec.GetOwner().GetNode() == n.name && r.s.faults:
			_, err = n.round.engine.Hibernate(impatient(), &nodev1.HibernateRequest{Vm: vm, Operation: r.id("h")})
		case rec.GetOwner().GetDigest() != "" && r.noticed():
			_, err = n.round.engine.Wake(impatient(), &nodev1.WakeRequest{Vm: vm, Operation: r.id("w"),
				Generation: rec.GetGeneration(), Uid: rec.GetUid()})
		default:
			return
		}
		r.s.trace = append(r.s.trace, fmt.Sprintf("user at %s: %v", n.name, err))
	})
}

// id of the next operation of that kind.
func (r *simRounds) id(kind string) string {
	r.ids++
	return fmt.Sprintf("%s%d", kind, r.ids)
}

// get reads the record, as a node does.
func (n *simNode) get() (*nodev1.Record, error) {
	if n.cut > 0 {
		return nil, fmt.Errorf("records, from %s: %w", n.name, errdefs.ErrUnavailable)
	}
	return n.records.Get(context.Background(), &nodev1.GetRequest{Vm: vm})
}

// Capture is that of a hibernate.
func (h *simHost) Capture(_ context.Context, _ *nodev1.VM,
	req *machinev1.CaptureRequest) (resp *machinev1.CaptureResponse, err error) {
	lost := h.shim("capture", func() error { resp, err = h.capture(req.GetRef()); return err })
	return resp, lost
}

func (h *simHost) Vote(_ context.Context, _ *nodev1.VM, req *machinev1.VoteRequest) (resp *machinev1.VoteResponse,
	err error) {
	lost := h.shim("vote", func() error { resp, err = h.vote(req.GetRef()); return err })
	if err == nil {
		h.trace = append(h.trace, h.name+" goes to sleep")
	}
	return resp, lost
}

// do is a call of the node's containerd, which makes one of a VM at a time.
func (k simTasks) do(call string, work func() error) error {
	k.late()
	for k.busy {
		k.yield()
	}
	k.busy = true
	defer func() { k.busy = false }()
	away := fmt.Errorf("%s: containerd of %s: %w", call, k.name, errdefs.ErrUnavailable)
	if k.chance(5) {
		return away
	}
	err := work()
	if k.late(); k.chance(5) {
		return errors.Join(err, away)
	}
	return err
}

// ordered reports whether the container's task is of an order.
func (k simTasks) ordered(order Restore) bool {
	return k.made.GetOperation() == order.Intent.Operation && k.made.GetAttempt() == order.Intent.Attempt
}

// Create has a shim decide by the record, and restore the VM, paused.
func (k simTasks) Create(_ context.Context, _ *nodev1.VM, order Restore) error {
	return k.do("create", func() error {
		if k.ordered(order) && k.task && (k.record == recordReady || k.record == recordOwn) {
			return nil
		}
		rec, err := k.get()
		if err != nil {
			return err
		}
		op := rec.GetOperation()
		ref := ref(op)
		count, there := k.blobs[order.Intent.Digest]
		switch {
		case k.isPod() && there:
			return fmt.Errorf("pod: it waits for its sandbox at %s: %w", k.name, errdefs.ErrUnavailable)
		case op.GetId() != order.Intent.Operation || op.GetAttempt() != order.Intent.Attempt || !abortable(op.GetPhase()):
			return refused(k.simNode, "create what was not ordered")
		case k.headless, k.record != "" && k.record != recordFenced && k.record != recordReleased, k.record == recordFenced &&
			k.holds(ref):
			return refused(k.simNode, "create")
		case !there:
			return fmt.Errorf("create: %s: %w", order.Intent.Digest, errdefs.ErrNotFound)
		}
		k.vmm, k.sent, k.made, k.task = vmmOff, "", ref, true
		for _, record := range []string{recordIncoming, recordReady} {
			if k.write(record, ref); k.record != record || !k.holds(ref) {
				return refused(k.simNode, "fill")
			}
			k.count, k.vmm, k.sent = count, vmmPaused, order.Intent.Digest
		}
		return nil
	})
}

// Start has the shim commit the wake, write that down, and let the VM run. What fails before that is
// fenced: it never runs here.
func (k simTasks) Start(context.Context, *nodev1.VM) error {
	return k.do("start", func() error {
		switch {
		case k.isPod(): // it has no task of that name
			return fmt.Errorf("start at %s: %w", k.name, errdefs.ErrNotFound)
		case k.task && k.record == recordOwn && k.vmm == vmmRuns:
			return nil
		case !k.task || k.record != recordReady || k.vmm != vmmPaused:
			return refused(k.simNode, "start")
		}
		return k.wake(k.ref)
	})
}

// wake is the shim's Start of a VM that is restored.
func (n *simNode) wake(ref *machinev1.Ref) error {
	n.starting = true
	defer func() { n.starting = false }()
	rec, err := n.commit(ref)
	if err != nil || n.record != recordReady || !n.holds(ref) || n.chance(5) {
		if n.record == recordReady && n.holds(ref) {
			_, _ = n.fence(ref)
		}
		return errors.Join(err, refused(n, "start"))
	}
	n.gen = rec.GetGeneration()
	if n.write(recordOwn, ref); n.isPod() {
		n.round.host.late()
	}
	if n.record == recordOwn && n.vmm == vmmPaused {
		if n.rounds.back > 0 { // what came after the copy may be gone
			n.last = n.count
		}
		n.run(n.gen)
		n.trace = append(n.trace, n.name+" has woken")
	}
	return nil
}

// commit is the shim's: the VM is this node's from then on.
func (n *simNode) commit(ref *machinev1.Ref) (*nodev1.Record, error) {
	defer func() { n.claiming = false }()
	return outside(n, simRecords{RecordsService: n.records, s: n.simulation, after: func() {
		n.claiming = true
	}}.Commit, &nodev1.CommitRequest{
		Vm: vm, Operation: ref.GetOperation(), Attempt: ref.GetAttempt(), Generation: ref.GetGeneration(),
		Owner: &nodev1.Owner{Node: n.name},
	})
}

func (k simTasks) Running(context.Context, *nodev1.VM) (running bool, _ error) {
	err := k.do("state", func() error {
		running = !k.isPod() && k.task && k.vmm != vmmDead && k.vmm != vmmOff &&
			(k.record == recordOwn || k.record == recordSending || k.record == recordPrepared)
		return nil
	})
	return running, err
}

// Undo kills the task of an order, whatever that does.
func (k simTasks) Undo(_ context.Context, _ *nodev1.VM, order Restore) error {
	return k.do("undo", func() error {
		if !k.ordered(order) || !k.task || k.record == "" {
			return nil
		}
		if k.record != recordReleased {
			k.vmm = vmmOff
			k.gone()
		}
		k.task = false
		k.write("", nil)
		return nil
	})
}

// Clear is Undo of a task that has ended.
func (k simTasks) Clear(_ context.Context, _ *nodev1.VM, order Restore) error {
	return k.do("clear", func() error {
		if !k.ordered(order) {
			return nil
		}
		if k.record != recordFenced && k.record != recordReleased && k.record != "" || k.vmm == vmmRuns {
			return refused(k.simNode, "clear")
		}
		k.task = false
		k.write("", nil)
		return nil
	})
}

// stored reports whether the VM as it was last is in the registry, and the record leads there. What a
// store that was put back does not know, an operator has to find.
func (r *simRounds) stored() bool {
	if r == nil {
		return false
	}
	rec, err := r.s.records.Get(context.Background(), &nodev1.GetRequest{Vm: vm})
	if err != nil {
		return false
	}
	asleep := []string{rec.GetOwner().GetDigest()}
	if op := rec.GetOperation(); op.GetKind() == nodev1.Kind_KIND_WAKE {
		asleep = append(asleep, op.GetDigest())
	}
	if r.back > 0 {
		asleep = slices.Collect(maps.Keys(r.s.blobs))
	}
	for _, digest := range asleep {
		if count, there := r.s.blobs[digest]; there && count == r.s.last {
			return true
		}
	}
	return false
}
