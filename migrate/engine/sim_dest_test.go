package engine

import (
	"context"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/model"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

func (n *simNode) prepare(req *nodev1.PeerPrepareRequest) (*nodev1.PeerPrepareResponse, error) {
	ref := req.GetRef()
	answer := &nodev1.PeerPrepareResponse{Channel: n.name, Certificate: []byte(n.name)}
	if len(req.GetOffer().GetResume()) > 0 {
		return n.preparePod(ref, answer)
	}
	switch {
	case (n.record == recordIncoming || n.record == recordReady) && n.holds(ref):
		if req.GetDigest() != "" && n.sent != req.GetDigest() { // captured anew, for records that were put back
			return nil, refused(n, "prepare another snapshot")
		}
		return answer, nil
	case n.record == recordFenced && n.holds(ref):
		return nil, fmt.Errorf("prepare: this attempt is over at node %s: %w", n.name, errdefs.ErrAborted)
	case n.record == recordIncoming, n.record == recordReady: // of another order: containerd has a task of that name
		return nil, fmt.Errorf("prepare at node %s: %w", n.name, errdefs.ErrAlreadyExists)
	case n.record == recordOwn && n.vmm != vmmDead, n.record == recordSending, n.record == recordPrepared, n.newer(ref):
		return nil, refused(n, "prepare")
	case !n.trusting && !n.open(ref):
		return nil, refused(n, "prepare what was not ordered")
	}
	n.vmm, n.sent, n.made, n.task = vmmOff, req.GetDigest(), ref, true
	n.write(recordIncoming, ref)
	if req.GetDigest() != "" {
		count, there := n.blobs[req.GetDigest()]
		if !there {
			return nil, fmt.Errorf("prepare: %s: %w", req.GetDigest(), errdefs.ErrNotFound)
		}
		if n.record != recordIncoming || !n.holds(ref) {
			return nil, refused(n, "prepare")
		}
		n.count, n.vmm, n.sent = count, vmmPaused, req.GetDigest()
		n.write(recordReady, ref)
	}
	return answer, nil
}

// newer reports whether the node has heard of a later attempt or operation.
func (n *simNode) newer(ref *machinev1.Ref) bool {
	return n.gen > ref.GetGeneration() || n.ref != nil && (n.ref.GetGeneration() > ref.GetGeneration() ||
		n.ref.GetOperation() == ref.GetOperation() && n.ref.GetAttempt() > ref.GetAttempt())
}

// runs is the thaw. Trusting: the fences alone keep the protocol, as in the model; else the
// record is asked once more, as shims do.
func (n *simNode) thaw(ref *machinev1.Ref) (*nodev1.PeerRunResponse, error) {
	same := n.holds(ref)
	switch {
	case n.record == recordOwn && same && n.vmm == vmmRuns:
		return &nodev1.PeerRunResponse{Running: true}, nil
	case n.record == recordOwn && same:
		return nil, fmt.Errorf("run: node %s has lost it: %w", n.name, errdefs.ErrDataLoss)
	case n.record == recordFenced && same:
		return &nodev1.PeerRunResponse{Fenced: true}, nil
	case n.record == recordReady && same && len(n.pod.missing()) > 0:
		return nil, refused(n, "run before all is started")
	case n.record == recordReady && n.vmm == vmmPaused && (same || n.mutation == model.RunNotFenced):
		return n.resume(ref, same)
	case n.record == "" && n.rounds != nil: // it may have run here, and was forgotten with its host's start
		return nil, fmt.Errorf("run: VM is gone from node %s: %w", n.name, errdefs.ErrDataLoss)
	case (n.record == recordIncoming || n.record == recordReady) && same, n.record == "", n.record == recordReleased &&
		!n.newer(ref):
		return n.fence(ref)
	}
	return nil, refused(n, "run")
}

func (n *simNode) resume(ref *machinev1.Ref, same bool) (*nodev1.PeerRunResponse, error) {
	if !n.trusting && !n.committed(ref) {
		return nil, refused(n, "run before the commit")
	}
	if same && n.mutation == model.CannotWithoutFence && n.chance(30) {
		return &nodev1.PeerRunResponse{Fenced: true}, nil
	}
	if same && n.chance(5) { // the VMM cannot be resumed
		return n.fence(ref)
	}
	if n.record != recordReady || n.vmm != vmmPaused {
		return nil, refused(n, "run")
	}
	gen := ref.GetGeneration() + 1
	n.gen = gen
	n.write(recordOwn, ref)
	if n.record != recordOwn || n.vmm != vmmPaused {
		return nil, refused(n, "run")
	}
	n.run(gen)
	return &nodev1.PeerRunResponse{Running: true}, nil
}

// asked is the operation of ref, if it is the open one.
func (n *simNode) asked(ref *machinev1.Ref) *nodev1.Operation {
	rec, err := n.get()
	if op := rec.GetOperation(); err == nil && op.GetId() == ref.GetOperation() && op.GetAttempt() == ref.GetAttempt() {
		return op
	}
	return nil
}

func (n *simNode) open(ref *machinev1.Ref) bool { return abortable(n.asked(ref).GetPhase()) }

func (n *simNode) committed(ref *machinev1.Ref) bool {
	return n.asked(ref).GetPhase() == nodev1.Phase_PHASE_COMMITTED
}

// reconcile ends what is left of an attempt that no node will run here, and whose Discard may never have come. It
// gives a VM back that a late request holds, as Engine.stray does.
func (n *simNode) reconcile() {
	switch ref := n.ref; n.record {
	case recordIncoming, recordReady:
		if n.asked(ref) == nil {
			n.spawn("reconcile", n.name, func() {
				if (n.record == recordIncoming || n.record == recordReady) && n.asked(n.ref) == nil {
					n.vmm = vmmOff
					n.write(recordFenced, n.ref)
				}
			})
		}
	case recordPrepared:
		if n.idle(ref) {
			n.spawn("reconcile", n.name, func() {
				if n.idle(ref) {
					n.yield()
					_, _ = n.abort(ref)
				}
			})
		}
	}
}

// idle reports whether the record says that this node has the VM as before ref, and that
// nothing is open.
func (n *simNode) idle(ref *machinev1.Ref) bool {
	rec, err := n.records.Get(context.Background(), &nodev1.GetRequest{Vm: vm})
	return err == nil && rec.GetOperation() == nil && rec.GetOwner().GetNode() == n.name &&
		rec.GetGeneration() == ref.GetGeneration()
}

func (n *simNode) fence(ref *machinev1.Ref) (*nodev1.PeerRunResponse, error) {
	n.vmm = vmmOff
	n.gone()
	n.write(recordFenced, ref)
	return &nodev1.PeerRunResponse{Fenced: true}, nil
}

func (n *simNode) discard(ref *machinev1.Ref) (*nodev1.PeerState, error) {
	n.pod.forget(ref)
	switch {
	case n.isPod() && n.record != recordIncoming && n.record != recordReady: // no shim waits here
	case n.record == recordOwn && n.holds(ref):
		return nil, refused(n, "discard")
	case (n.record == recordIncoming || n.record == recordReady) && n.holds(ref),
		(n.record == recordFenced || n.record == recordReleased || n.record == "") && !n.holds(ref) && !n.newer(ref):
		n.vmm = vmmOff
		n.write(recordFenced, ref)
	}
	return &nodev1.PeerState{}, nil
}

// crash ends the node's processes but the VMM; their successors look at the record.
func (n *simNode) crash() {
	n.kill(n.name)
	n.task, n.pod.expected = false, nil
	if n.rounds != nil { // whose round adopts the VM
		n.headless = true
		n.rounds.begin(n)
		return
	}
	n.succeed()
}

// succeed is the successor of a shim.
func (n *simNode) succeed() {
	n.spawn("successor", n.name, func() {
		switch {
		case n.record == recordSending && n.rounds != nil && strings.HasPrefix(n.sent, "sha256:") && n.chance(50):
			return // its driver decides
		case n.record == recordSending:
			n.giveUp()
		case n.record == recordIncoming, n.record == recordReady && n.rounds != nil:
			n.vmm = vmmOff
			n.write(recordFenced, n.ref)
			n.closeWake()
		case n.record == recordFenced && n.pod.self:
			n.closeWake()
		case n.record == recordOwn && n.vmm == vmmDead && n.rounds != nil: // the host was started again
			n.write("", nil)
		case n.record == recordOwn && n.vmm == vmmPaused && n.ref != nil: // between record and thaw
			n.run(n.gen)
		case n.record == recordOwn && (n.vmm == vmmPaused || n.vmm == vmmFrozen):
			n.run(n.gen)
		}
	})
}

// selfResume is a VMM whose owner is gone: what is not frozen runs.
func (n *simNode) selfResume() {
	if n.vmm != vmmPaused || n.record != recordSending && n.record != recordPrepared {
		return
	}
	if n.record == recordSending {
		n.spawn("deadline", n.name, n.giveUp)
		return
	}
	n.run(n.ref.GetGeneration())
}

// reboot leaves the record.
func (n *simNode) reboot() {
	n.kill(n.name)
	n.task, n.pod.expected = false, nil
	if n.rounds != nil {
		n.headless = true
		n.rounds.begin(n)
	}
	if n.vmm != vmmOff {
		n.vmm = vmmDead
	}
	if n.record == recordIncoming {
		n.note(n.record, recordFenced)
		n.record = recordFenced
	}
	if n.record == recordSending {
		n.note(n.record, recordOwn)
		n.record, n.gen, n.ref = recordOwn, n.ref.GetGeneration(), nil
	}
}
