package engine

import (
	"fmt"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/model"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// What a VMM does.
const (
	vmmOff    = "off"
	vmmRuns   = "runs"
	vmmPaused = "paused"
	vmmFrozen = "frozen" // by the vote: nothing resumes it but an order
	vmmDead   = "dead"
)

// simNode is a node as shim and godwitd make it: a record that survives everything, and a
// VMM that survives its shim. Its rules are those of package model, node for node.
type simNode struct {
	*simulation
	name   string
	record string // OWN SENDING PREPARED RELEASED INCOMING READY FENCED; empty: none
	ref    *machinev1.Ref
	gen    uint64 // of OWN
	vmm    string
	count  int // in the VM's memory
	sent   string

	headless bool           // its shim is dead, and the VM is not adopted
	unread   int            // so many steps there are no descriptors: nothing on this node can be looked at
	made     *machinev1.Ref // the order that containerd's task is of
	looked   int            // rounds that are over
	round    *simRound      // what the node remembers of one, if rounds are played
	cut      int            // so many steps the node is cut off, in both directions
	task     bool           // containerd has the VM's task
	busy     bool           // containerd is at work on it
	starting bool           // its shim has begun to let it run
	claiming bool           // the record has given the VM to this node, whose journal does not say so yet
	pod      simPod         // what CRI has made here, if the VM is a pod
}

func (n *simNode) holds(ref *machinev1.Ref) bool {
	return n.ref.GetOperation() == ref.GetOperation() && n.ref.GetAttempt() == ref.GetAttempt() &&
		n.ref.GetGeneration() == ref.GetGeneration()
}

// write makes a record durable, which the VMM's action may follow: a node can die in
// between.
func (n *simNode) write(to string, ref *machinev1.Ref) {
	n.note(n.record, to)
	n.record, n.ref = to, ref
	n.yield()
}

func (n *simNode) run(gen uint64) {
	n.vmm = vmmRuns
	n.ran(n, gen)
}

func refused(n *simNode, call string) error {
	return fmt.Errorf("%s: node %s has %s of %s, VMM %s: %w", call, n.name, n.record, n.ref.GetOperation(), n.vmm,
		errdefs.ErrFailedPrecondition)
}

func (n *simNode) offer(ref *machinev1.Ref) (*machinev1.OfferResponse, error) {
	if n.record == recordOwn && n.vmm == vmmRuns && n.gen == ref.GetGeneration() || n.record == recordSending &&
		n.holds(ref) {
		answer := &machinev1.OfferResponse{Certificate: []byte(n.name)}
		if n.isPod() {
			answer.Resume = []byte("{}")
		}
		return answer, nil
	}
	return nil, refused(n, "offer")
}

// hold is the beginning of Capture and Send. It answers what was sent if it is over.
func (n *simNode) hold(ref *machinev1.Ref) (sent string, err error) {
	switch {
	case n.record == recordSending && n.holds(ref):
		for n.sent == "" && n.record == recordSending && n.holds(ref) { // joins the one under way
			n.yield()
		}
		if n.sent != "" && n.holds(ref) {
			return n.sent, nil
		}
		return "", refused(n, "join")
	case n.record != recordOwn || n.vmm != vmmRuns || n.gen != ref.GetGeneration():
		return "", refused(n, "hold")
	}
	n.sent = ""
	n.write(recordSending, ref)
	return "", nil
}

// still pauses the VM for its hold; the hold may be over by then.
func (n *simNode) still(ref *machinev1.Ref) error {
	n.yield()
	if n.record != recordSending || !n.holds(ref) || n.vmm != vmmRuns {
		return refused(n, "pause")
	}
	n.vmm = vmmPaused
	n.yield()
	if n.record != recordSending || !n.holds(ref) || n.vmm != vmmPaused {
		return refused(n, "capture")
	}
	return nil
}

func (n *simNode) capture(ref *machinev1.Ref) (*machinev1.CaptureResponse, error) {
	sent, err := n.hold(ref)
	if err == nil && sent == "" {
		if err = n.still(ref); err == nil {
			n.captures++
			sent = fmt.Sprintf("sha256:%064d", n.captures)
			n.blobs[sent], n.sent = n.count, sent
			n.rounds.pushed(sent, ref)
		}
	}
	return &machinev1.CaptureResponse{Digest: sent}, err
}

func (n *simNode) send(ref *machinev1.Ref, channel string) (*machinev1.SendResponse, error) {
	if channel == "" {
		n.violated("node %s is to send to a node that waits", n.name)
	}
	sent, err := n.hold(ref)
	if err == nil && sent == "" {
		if err = n.still(ref); err == nil {
			sent, err = n.deliver(n.nodes[channel], ref)
		}
		if err != nil && n.record == recordSending && n.holds(ref) { // the VM runs on
			n.giveUp()
		}
	}
	return &machinev1.SendResponse{Digest: sent}, err
}

// deliver is the destination's end of the stream: all is there, READY is durable.
func (n *simNode) deliver(to *simNode, ref *machinev1.Ref) (string, error) {
	if n.chance(5) || to == nil || to.record != recordIncoming || !to.holds(ref) {
		return "", fmt.Errorf("stream to %s broke: %w", n.name, errdefs.ErrUnavailable)
	}
	n.captures++
	sent := fmt.Sprintf("%s%032d", record.StreamPrefix, n.captures)
	to.count, to.vmm, to.sent = n.count, vmmPaused, sent
	if n.mutation == model.NativeResume { // it resumes, and its OK may be lost
		to.record, to.ref, to.gen = recordOwn, ref, ref.GetGeneration()+1
		to.run(to.gen)
		if n.chance(50) {
			return "", fmt.Errorf("stream to %s broke: %w", n.name, errdefs.ErrUnavailable)
		}
	} else {
		to.write(recordReady, ref)
	}
	if n.record != recordSending || !n.holds(ref) {
		return "", refused(n, "send")
	}
	n.sent = sent
	return sent, nil
}

// giveUp is a source's own way back before its vote: deadline, successor, broken stream.
func (n *simNode) giveUp() {
	if n.record != recordSending {
		return
	}
	gen := n.ref.GetGeneration()
	n.write(recordOwn, nil)
	if n.gen = gen; n.vmm == vmmPaused || n.vmm == vmmFrozen {
		n.run(gen)
	}
}

func (n *simNode) vote(ref *machinev1.Ref) (*machinev1.VoteResponse, error) {
	switch {
	case n.record == recordPrepared && n.holds(ref):
	case n.record == recordSending && n.holds(ref) && n.sent != "" && n.vmm == vmmPaused:
		if n.vmm = vmmFrozen; n.mutation == model.NoFreeze {
			n.vmm = vmmPaused
		}
		n.yield()
		if n.record != recordSending || !n.holds(ref) { // aborted meanwhile
			return nil, refused(n, "vote")
		}
		n.write(recordPrepared, ref)
	default:
		return nil, refused(n, "vote")
	}
	return &machinev1.VoteResponse{Digest: n.sent}, nil
}

func (n *simNode) abort(ref *machinev1.Ref) (*machinev1.AbortResponse, error) {
	if (n.record == recordSending || n.record == recordPrepared) && n.holds(ref) {
		n.write(recordOwn, nil)
		n.gen = ref.GetGeneration()
		if n.vmm == vmmPaused || n.vmm == vmmFrozen {
			n.run(n.gen)
		}
	} else if n.record == recordSending || n.record == recordPrepared {
		return nil, refused(n, "abort")
	}
	return &machinev1.AbortResponse{State: n.vmm}, nil
}

func (n *simNode) revert(ref *machinev1.Ref, gen uint64) (*machinev1.RevertResponse, error) {
	switch {
	case n.record == recordOwn && n.gen == gen:
		if n.vmm == vmmFrozen {
			n.run(gen)
		}
		if n.vmm == vmmRuns {
			return &machinev1.RevertResponse{}, nil
		}
		return nil, fmt.Errorf("revert: node %s lost it: %w", n.name, errdefs.ErrDataLoss)
	case n.record != recordPrepared || !n.holds(ref):
		return nil, refused(n, "revert")
	case n.vmm == vmmDead:
		return nil, fmt.Errorf("revert: node %s lost it: %w", n.name, errdefs.ErrDataLoss)
	}
	n.gen = gen
	n.write(recordOwn, nil)
	n.run(gen)
	return &machinev1.RevertResponse{}, nil
}

func (n *simNode) release(ref *machinev1.Ref) (*nodev1.PeerState, error) {
	switch {
	case n.record == recordReleased && n.holds(ref):
	case n.record == recordPrepared && n.holds(ref):
		n.vmm = vmmOff
		n.gone()
		n.trace = append(n.trace, n.name+" is released by "+ref.GetOperation())
		n.write(recordReleased, ref)
	default:
		return nil, refused(n, "release")
	}
	return &nodev1.PeerState{}, nil
}
