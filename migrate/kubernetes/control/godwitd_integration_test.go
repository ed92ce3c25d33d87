//go:build integration

package control

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/engine"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A VM at a node: armed waits for its state, paused has sent it, left was released.
const (
	armed  = "armed"
	runs   = "runs"
	paused = "paused"
	left   = "left"
)

// digest is what the hibernate of a VM of generation 1 makes.
const digest = "sha256:1111111111111111111111111111111111111111111111111111111111111111"

// daemons are the godwitds of all nodes, which drive hibernates, checkpoints, and wakes that have a node.
func (w *world) daemons() {
	for w.t.Context().Err() == nil {
		all, err := w.records.List(w.t.Context(), &nodev1.ListRequest{})
		for _, rec := range all.GetRecords() {
			if op := rec.GetOperation(); err == nil && op != nil && !record.Unplaced(op) &&
				op.GetKind() != nodev1.Kind_KIND_MIGRATE {
				w.drive(rec)
			}
		}
		time.Sleep(tick)
	}
}

// drive takes one step. What it answers is looked at with the next one.
func (w *world) drive(rec *nodev1.Record) {
	op, ctx := rec.GetOperation(), w.t.Context()
	w.mu.Lock()
	why := w.noWake
	down := w.down[op.GetSource()] && op.GetKind() != nodev1.Kind_KIND_WAKE || w.down[op.GetDestination()] ||
		w.hangs[op.GetPhase()]
	w.mu.Unlock()
	if down {
		return
	}
	vm, wake := op.GetVm().GetId(), op.GetKind() == nodev1.Kind_KIND_WAKE
	next := func(phase nodev1.Phase, digest string) {
		_, _ = w.records.Advance(ctx, &nodev1.AdvanceRequest{Vm: op.GetVm(), Operation: op.GetId(),
			Attempt: op.GetAttempt(), Generation: op.GetGeneration(), Phase: phase, Digest: digest})
	}
	commit := func(owner *nodev1.Owner) {
		if _, err := w.records.Commit(ctx, &nodev1.CommitRequest{Vm: op.GetVm(), Operation: op.GetId(),
			Attempt: op.GetAttempt(), Generation: op.GetGeneration(), Owner: owner,
			Receipt: fmt.Sprintf(`{"operation":%q,"attempt":%d,"generation":%d,"digest":%q,"stopped":true}`, op.GetId(),
				op.GetAttempt(), op.GetGeneration(), op.GetDigest())}); err != nil {
			w.t.Log("commit", err)
			return
		}
		switch op.GetKind() {
		case nodev1.Kind_KIND_WAKE:
			w.become(vm, op.GetDestination(), runs)
		case nodev1.Kind_KIND_HIBERNATE:
			w.become(vm, op.GetSource(), left)
		}
	}
	end := func(phase nodev1.Phase) {
		_, _ = w.records.Finish(ctx, &nodev1.FinishRequest{Vm: op.GetVm(), Operation: op.GetId(),
			Attempt: op.GetAttempt(), Generation: op.GetGeneration(), Phase: phase})
	}
	switch op.GetPhase() {
	case nodev1.Phase_PHASE_PENDING:
		next(nodev1.Phase_PHASE_TRANSFERRING, "")
	case nodev1.Phase_PHASE_TRANSFERRING:
		switch {
		case wake && why != "":
			_, _ = w.records.Advance(ctx, &nodev1.AdvanceRequest{Vm: op.GetVm(), Operation: op.GetId(),
				Attempt: op.GetAttempt(), Generation: op.GetGeneration(), Phase: nodev1.Phase_PHASE_ABORTING, Reason: why})
		case !wake:
			next(nodev1.Phase_PHASE_SWITCHING, "sha256:"+strings.Repeat(strconv.FormatUint(op.GetGeneration()%10, 10), 64))
		case w.is(vm, op.GetDestination()) == armed:
			next(nodev1.Phase_PHASE_SWITCHING, "")
		}
	case nodev1.Phase_PHASE_SWITCHING:
		switch op.GetKind() {
		case nodev1.Kind_KIND_WAKE:
			commit(&nodev1.Owner{Node: op.GetDestination()})
		case nodev1.Kind_KIND_CHECKPOINT:
			commit(&nodev1.Owner{Node: op.GetSource()})
		default:
			commit(&nodev1.Owner{Digest: op.GetDigest()})
		}
	case nodev1.Phase_PHASE_COMMITTED:
		next(nodev1.Phase_PHASE_CLEANING, "")
	case nodev1.Phase_PHASE_CLEANING:
		end(nodev1.Phase_PHASE_SUCCEEDED)
	case nodev1.Phase_PHASE_ABORTING:
		w.become(vm, op.GetDestination(), "")
		if op.GetCancelled() {
			end(nodev1.Phase_PHASE_ABORTED)
		} else {
			end(nodev1.Phase_PHASE_FAILED)
		}
	}
}

// peers are the nodes as one operator reaches them. Each call may fail, before or after it was carried out.
type peers struct {
	*world
	from *process
}

func (p peers) Drives(string) bool { return true }

func (p peers) Nodes() (all []*nodev1.NodeInfo) {
	for _, name := range []string{"a", "b", "c"} {
		p.mu.Lock()
		down := p.down[name]
		p.mu.Unlock()
		all = append(all, &nodev1.NodeInfo{Name: name, Up: !down, Address: name})
	}
	return all
}

func (p peers) Node(name string) (*nodev1.NodeInfo, error) {
	for _, n := range p.Nodes() {
		if n.GetName() == name {
			return n, nil
		}
	}
	return nil, fmt.Errorf("node %s: %w", name, errdefs.ErrNotFound)
}

func (p peers) Peer(node string) (nodev1.PeerService, error) { return peer{p, node}, nil }

// peer is a node. What a move does not ask of it is not there.
type peer struct {
	peers
	node string
}

// call makes a call, and fails it where the test wants that: the answer is lost, or nothing was done.
func (p peer) call(name string, do func() error) error {
	before, after := p.fault(name)
	link := &engine.LinkError{Node: p.node, Err: errdefs.ErrUnavailable}
	p.mu.Lock()
	away := p.down[p.node]
	p.mu.Unlock()
	if before || away || p.from.dead.Load() {
		return link
	}
	err := do()
	if after || p.from.dead.Load() {
		return link
	}
	return err
}

// order opens an operation of the node's own, once.
func (p peer) order(ctx context.Context, kind nodev1.Kind, vm *nodev1.VM, id, uid string,
	generation uint64) (*nodev1.StatusResponse, error) {
	err := p.call(kind.String(), func() error {
		rec, err := p.records.Get(ctx, &nodev1.GetRequest{Vm: vm})
		if err != nil {
			return err
		}
		if known, err := p.records.Operation(ctx, &nodev1.OperationRequest{Id: id}); err == nil && known != nil {
			return nil
		}
		if rec.GetUid() != uid || rec.GetGeneration() != generation {
			return &record.HeldError{Call: "order", Record: rec}
		}
		_, err = p.records.Open(ctx, &nodev1.OpenRequest{Vm: vm, Uid: uid, Operation: &nodev1.Operation{Id: id, Kind: kind,
			Attempt: 1, Generation: generation, Source: p.node, Managed: true, Repository: "r/" + uid,
			Tag: record.SnapshotTag(generation, id, 1)}})
		return err
	})
	return &nodev1.StatusResponse{}, err
}

func (p peer) Hibernate(ctx context.Context, r *nodev1.HibernateRequest) (*nodev1.StatusResponse, error) {
	p.mu.Lock()
	mute := p.mute[p.node]
	p.mu.Unlock()
	if mute {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return p.order(ctx, nodev1.Kind_KIND_HIBERNATE, r.GetVm(), r.GetOperation(), r.GetUid(), r.GetGeneration())
}

func (p peer) Checkpoint(ctx context.Context, r *nodev1.CheckpointRequest) (*nodev1.StatusResponse, error) {
	return p.order(ctx, nodev1.Kind_KIND_CHECKPOINT, r.GetVm(), r.GetOperation(), r.GetUid(), r.GetGeneration())
}

func (p peer) Wake(context.Context, *nodev1.WakeRequest) (*nodev1.StatusResponse, error) {
	return &nodev1.StatusResponse{}, p.call("Wake", func() error { return nil }) // its round finds the wake
}

func (p peer) Check(context.Context, *nodev1.PeerCheckRequest) (*nodev1.PeerCheckResponse, error) {
	return &nodev1.PeerCheckResponse{}, p.call("Check", func() error { return nil })
}

func (p peer) Offer(context.Context, *nodev1.PeerRef) (*machinev1.OfferResponse, error) {
	return &machinev1.OfferResponse{Resume: []byte("{}")}, p.call("Offer", func() error { return nil })
}

// Prepare answers that it waits until the pod is armed: kubelet makes its containers.
func (p peer) Prepare(_ context.Context, r *nodev1.PeerPrepareRequest) (*nodev1.PeerPrepareResponse, error) {
	resp := &nodev1.PeerPrepareResponse{Address: "x:1", Channel: "c"}
	err := p.call("Prepare", func() error {
		if p.is(r.GetVm().GetId(), p.node) != armed {
			resp.Waits = "it waits for CRI"
		}
		return nil
	})
	return resp, err
}

func (p peer) Send(_ context.Context, r *nodev1.PeerSendRequest) (*machinev1.SendResponse, error) {
	p.slowly()
	return &machinev1.SendResponse{Digest: record.StreamPrefix + "1", PauseMs: 1}, p.call("Send", func() error {
		switch p.is(r.GetVm().GetId(), p.node) {
		case runs, paused:
			p.become(r.GetVm().GetId(), p.node, paused)
			return nil
		}
		return errdefs.ErrFailedPrecondition
	})
}

func (p peer) Capture(context.Context, *nodev1.PeerCaptureRequest) (*machinev1.CaptureResponse, error) {
	return nil, errdefs.ErrNotImplemented
}

func (p peer) Vote(context.Context, *nodev1.PeerRef) (*machinev1.VoteResponse, error) {
	return &machinev1.VoteResponse{Digest: record.StreamPrefix + "1"}, p.call("Vote", func() error { return nil })
}

func (p peer) Abort(_ context.Context, r *nodev1.PeerAbortRequest) (*machinev1.AbortResponse, error) {
	return &machinev1.AbortResponse{}, p.call("Abort", func() error {
		if p.is(r.GetVm().GetId(), p.node) == paused {
			p.become(r.GetVm().GetId(), p.node, runs)
		}
		return nil
	})
}

func (p peer) Revert(context.Context, *nodev1.PeerRevertRequest) (*machinev1.RevertResponse, error) {
	return nil, errdefs.ErrNotImplemented
}

func (p peer) Run(ctx context.Context, r *nodev1.PeerRef) (*nodev1.PeerRunResponse, error) {
	return &nodev1.PeerRunResponse{Running: true}, p.call("Run", func() error {
		rec, err := p.records.Get(ctx, &nodev1.GetRequest{Vm: r.GetVm()})
		if err == nil && rec.GetOwner().GetNode() != p.node {
			return errdefs.ErrFailedPrecondition
		}
		p.become(r.GetVm().GetId(), p.node, runs)
		return err
	})
}

func (p peer) Release(_ context.Context, r *nodev1.PeerReleaseRequest) (*nodev1.PeerState, error) {
	return &nodev1.PeerState{}, p.call("Release", func() error {
		p.become(r.GetVm().GetId(), p.node, left)
		return nil
	})
}

func (p peer) Discard(_ context.Context, r *nodev1.PeerRef) (*nodev1.PeerState, error) {
	return &nodev1.PeerState{}, p.call("Discard", func() error {
		p.become(r.GetVm().GetId(), p.node, "")
		return nil
	})
}

func (p peer) Query(context.Context, *nodev1.PeerRef) (*nodev1.PeerState, error) {
	return &nodev1.PeerState{}, p.call("Query", func() error { return nil })
}

func (p peer) Tell(context.Context, *nodev1.PeerTellRequest) (*machinev1.TellResponse, error) {
	return nil, errdefs.ErrNotImplemented
}

func (p peer) Log(context.Context, *nodev1.LogRequest) (*nodev1.LogResponse, error) {
	return nil, errdefs.ErrNotImplemented
}
