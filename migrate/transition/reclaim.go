package transition

import (
	"cmp"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Kept is what the source of a move still holds of the VM. The move has lost the VM, or its destination is about to
// be called lost. nil: there is none. Of a cold move the snapshot is as good.
func Kept(rec *nodev1.Record) *nodev1.Kept {
	if op := rec.GetOperation(); op != nil {
		if op.GetPhase() != committed {
			return nil
		}
		return kept(op)
	}
	return record.KeptOf(rec)
}

// kept is what the source of op holds if its destination has lost it.
func kept(op *nodev1.Operation) *nodev1.Kept {
	if op.GetKind() != nodev1.Kind_KIND_MIGRATE || op.GetDigest() == "" || stored(op) || op.GetPhase() == lostAtSrc {
		return nil
	}
	r, _ := record.ParseReceipt(op.GetReceipt()) // it was judged by the commit
	return &nodev1.Kept{
		Node: op.GetSource(), Destination: op.GetDestination(), Operation: op.GetId(), Attempt: op.GetAttempt(),
		Generation: op.GetGeneration(),
		Digest:     op.GetDigest(), StoppedUnixNano: cmp.Or(r.StopAt, op.GetCommittedUnixNano()),
		Place: op.GetSourcePlace(),
	}
}

// Reclaim makes the source of a live move the owner of the VM that the move has lost, under a
// new generation: what the destination has done with it is given up, and it can do no more.
func Reclaim(s State, req *nodev1.ReclaimRequest, now time.Time) (Change, error) {
	rec := s.Record
	if rec == nil {
		return Change{}, missing(req.GetVm())
	}
	call := fmt.Sprintf("take VM %s back from operation %s", name(rec.GetVm()), req.GetOperation())
	if k := rec.GetKept(); k.GetReclaimed() && k.GetOperation() == req.GetOperation() &&
		record.Follows(rec, req.GetGeneration()) {
		return keep(s)
	}
	k, op := Kept(rec), rec.GetOperation()
	switch {
	case k == nil || k.GetOperation() != req.GetOperation(), rec.GetRivals():
		return Change{}, held(rec, call)
	case op != nil && req.GetLostNode() != op.GetDestination():
		return Change{}, held(rec, call+", whose destination is not called lost")
	case rec.GetGeneration() != req.GetGeneration():
		return Change{}, fmt.Errorf("%s: it was given away meanwhile, %d times and not %d: "+
			"%w", call, rec.GetGeneration(), req.GetGeneration(),
			errdefs.ErrFailedPrecondition)
	}
	rec = edit(s)
	closed := rec.Operation
	if closed != nil {
		abandon(closed, req.GetLostNode(), now)
	}
	rec.Operation = nil
	own(rec, &nodev1.Owner{Node: k.GetNode()}, "")
	rec.Place = k.GetPlace()
	k = proto.CloneOf(k)
	k.Reclaimed = true
	rec.Lost, rec.Kept, rec.Conflict = "", k, ""
	return Change{Record: rec, Closed: closed}, nil
}
