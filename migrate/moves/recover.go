package moves

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/transition"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Recover implements nodev1.MovesService: the one way in which a VM leaves a node that
// does not answer. Nothing here finds out whether that node is dead: the caller says so.
func (s *Service) Recover(ctx context.Context, req *nodev1.RecoverRequest) (*nodev1.RecoverResponse, error) {
	call := "recover VM " + key(req.GetVm())
	rec, err := s.Records.Get(ctx, &nodev1.GetRequest{Vm: req.GetVm()})
	if err != nil {
		return nil, err
	}
	if req.GetFromSource() {
		return s.reclaim(ctx, req, rec, call)
	}
	if err := authorize(ctx, call, req.GetTo()); err != nil {
		return nil, err
	}
	if err := s.Pull.Allows(ctx, rec, req.GetTo()); err != nil {
		return nil, err
	}
	lost := transition.InHand(rec)
	refs := transition.Restorable(rec)
	digest := cmp.Or(req.GetDigest(), rec.GetOwner().GetDigest(), transition.Newest(rec).GetDigest())
	i := slices.IndexFunc(refs, func(r *nodev1.SnapshotRef) bool { return r.GetDigest() == digest })
	k := transition.Kept(rec)
	switch {
	case req.GetLostNode() != "" && req.GetLostNode() != lost, req.GetGeneration() != 0 &&
		req.GetGeneration() != rec.GetGeneration():
		return nil, fmt.Errorf("%s from node %s: node %q has it by now: "+
			"%w", call, req.GetLostNode(), lost, errdefs.ErrFailedPrecondition)
	case k != nil && req.GetDigest() == "":
		return nil, fmt.Errorf("%s: node %s still holds it as it was at the switch-over, newer than any snapshot. To have "+
			"that back: --from-source. To have a snapshot instead: --digest: %w", call, k.GetNode(),
			errdefs.ErrFailedPrecondition)
	case lost == "":
		return nil, &record.HeldError{Call: call, Record: rec}
	case i < 0:
		return nil, fmt.Errorf("%s: node %s has it, and there is no such snapshot of it: it lives or ends with that node. "+
			"To see its snapshots: godwit snapshot ls: %w",
			call, lost, errdefs.ErrNotFound)
	}
	resp := &nodev1.RecoverResponse{Digest: refs[i].GetDigest(), CreatedUnixNano: refs[i].GetCreatedUnixNano(),
		LostNode: lost}
	if !req.GetFenced() {
		return resp, nil // what would be done
	}
	if err := s.cordoned(req.GetTo()); err != nil {
		return nil, fmt.Errorf("%s: %w", call, err)
	}
	if s.up(lost) {
		return nil, fmt.Errorf("%s: node %s answers: move the VM instead: %w", call, lost, errdefs.ErrFailedPrecondition)
	}
	resp.Wake, err = s.wake(controller.WithoutPeer(ctx), req, rec, resp.GetDigest())
	return resp, err
}

// wake opens the wake here, as a node may not take a VM from another one, and has its
// destination drive it.
func (s *Service) wake(ctx context.Context, req *nodev1.RecoverRequest, rec *nodev1.Record,
	digest string) (*nodev1.StatusResponse, error) {
	peer, err := s.Peer(req.GetTo())
	if err != nil {
		return nil, err
	}
	if _, err := peer.Query(ctx, &nodev1.PeerRef{Vm: req.GetVm()}); err != nil {
		return nil, err // no controller would drive it
	}
	id := cmp.Or(req.GetOperation(), uuid.NewString())
	op := &nodev1.Operation{Id: id, Kind: nodev1.Kind_KIND_WAKE, Attempt: 1, Generation: rec.GetGeneration(),
		Destination: req.GetTo(), Digest: digest, Managed: true}
	open := &nodev1.OpenRequest{Vm: req.GetVm(), Operation: op, ForceDigest: digest, LostNode: transition.InHand(rec)}
	if rec, err = s.Records.Open(ctx, open); err != nil {
		return nil, err
	}
	return peer.Wake(ctx, &nodev1.WakeRequest{Vm: req.GetVm(), Operation: id, Digest: digest,
		Generation: rec.GetGeneration(), Uid: rec.GetUid()})
}

// reclaim gives a VM that its live move has lost back to the source of that move. Its
// destination is fenced first: by its own word that nothing runs there, or by the caller's.
func (s *Service) reclaim(ctx context.Context, req *nodev1.RecoverRequest, rec *nodev1.Record,
	call string) (*nodev1.RecoverResponse, error) {
	k := transition.Kept(rec)
	if k == nil {
		return nil, fmt.Errorf("%s from its source: no live move has lost it, or nothing is left at its source: %w", call,
			errdefs.ErrFailedPrecondition)
	}
	if err := authorize(ctx, call, k.GetNode(), k.GetDestination()); err != nil {
		return nil, err
	}
	if at := req.GetLostNode(); at != "" && at != k.GetDestination() ||
		req.GetGeneration() != 0 && req.GetGeneration() != rec.GetGeneration() {
		return nil, fmt.Errorf("%s from its source: node %q has lost it by now, not %q: %w", call, k.GetDestination(), at,
			errdefs.ErrFailedPrecondition)
	}
	ctx = controller.WithoutPeer(ctx)
	ref := &nodev1.PeerRef{Vm: req.GetVm(), Ref: &machinev1.Ref{Operation: k.GetOperation(), Attempt: k.GetAttempt(),
		Generation: k.GetGeneration()}}
	source, err := s.holder(ctx, ref, k, call)
	if err != nil {
		return nil, err
	}
	resp := &nodev1.RecoverResponse{Digest: k.GetDigest(), CreatedUnixNano: k.GetStoppedUnixNano(),
		LostNode: k.GetDestination(), Source: k.GetNode()}
	if !req.GetFenced() {
		return resp, nil
	}
	if err := s.fenced(ctx, ref, k.GetDestination(), call); err != nil {
		return nil, err
	}
	rec, err = s.Records.Reclaim(ctx, &nodev1.ReclaimRequest{Vm: req.GetVm(), Operation: k.GetOperation(),
		Generation: rec.GetGeneration(), LostNode: k.GetDestination()})
	if err != nil {
		return nil, err
	}
	// From here on the source does it by itself too, once it looks at the record.
	_, err = source.Revert(ctx, &nodev1.PeerRevertRequest{Vm: req.GetVm(), Ref: ref.GetRef(),
		OwnerGeneration: rec.GetGeneration()})
	return resp, err
}

// ErrNothingHeld is the source's own word that it has nothing of the VM.
var ErrNothingHeld = fmt.Errorf("it has nothing of the VM any more: %w", errdefs.ErrDataLoss)

// holder is the source, which says that it holds the VM.
func (s *Service) holder(ctx context.Context, ref *nodev1.PeerRef, k *nodev1.Kept, call string) (nodev1.PeerService,
	error) {
	source, err := s.Peer(k.GetNode())
	if err != nil {
		return nil, err
	}
	state, err := source.Query(ctx, ref)
	if err != nil {
		return nil, err
	}
	if !state.GetKnown() {
		return nil, fmt.Errorf("%s: node %s: %w", call, k.GetNode(), ErrNothingHeld)
	}
	holds := state.GetMachine().GetRef()
	if state.GetMachine().GetRecord() != "PREPARED" || holds.GetOperation() != k.GetOperation() ||
		holds.GetAttempt() != k.GetAttempt() {
		return nil, fmt.Errorf("%s: node %s does not hold it any more: %w", call, k.GetNode(), errdefs.ErrDataLoss)
	}
	return source, nil
}

// fenced wants to know that the destination runs nothing of the VM. One that answers says so
// itself, and what it has of the attempt is undone there. Without a name it is one that no record knows since the store
// was put back.
func (s *Service) fenced(ctx context.Context, ref *nodev1.PeerRef, node, call string) error {
	if node == "" {
		return s.nowhere(ctx, ref, call)
	}
	peer, state, err := s.query(ctx, ref, node)
	switch {
	case runs(state):
		return elsewhere(call, node, state)
	case state.GetKnown() && state.GetMachine().GetRecord() != "OWN":
		_, err = peer.Discard(ctx, ref)
	}
	if err != nil && s.up(node) {
		return fmt.Errorf("%s: node %s, which lost it, is up and does not say that it runs nothing: %w", call, node, err)
	}
	return nil
}

// nowhere wants each node that is up to say that the VM does not run there.
func (s *Service) nowhere(ctx context.Context, ref *nodev1.PeerRef, call string) error {
	for _, n := range s.Cluster.Nodes() {
		if n.GetControllerOnly() {
			continue
		}
		_, state, err := s.query(ctx, ref, n.GetName())
		switch {
		case runs(state):
			return elsewhere(call, n.GetName(), state)
		case err != nil && n.GetUp():
			return fmt.Errorf("%s: node %s is up, and does not say that it runs nothing: %w", call, n.GetName(), err)
		}
	}
	return nil
}

// query asks a node what it has of a VM. With an error the state is nil.
func (s *Service) query(ctx context.Context, ref *nodev1.PeerRef, node string) (peer nodev1.PeerService,
	state *nodev1.PeerState, err error) {
	if peer, err = s.Peer(node); err != nil {
		return nil, nil, err
	}
	if state, err = peer.Query(ctx, ref); err != nil {
		return peer, nil, err
	}
	return peer, state, nil
}

func runs(state *nodev1.PeerState) bool {
	m := state.GetMachine()
	return state.GetKnown() && m.GetRecord() == "OWN" && m.GetState() != "stopped"
}

func elsewhere(call, node string, state *nodev1.PeerState) error {
	return fmt.Errorf("%s: node %s has it, %s: %w", call, node, state.GetMachine().GetState(),
		errdefs.ErrFailedPrecondition)
}

// up reports whether a node was heard lately.
func (s *Service) up(node string) bool {
	n, _ := s.Cluster.Node(node)
	return n.GetUp()
}
