package transition

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Commit is the one commit point of an operation: the owner changes, once.
func Commit(s State, req *nodev1.CommitRequest, now time.Time) (Change, error) {
	call := fmt.Sprintf("commit operation %s of VM %s", req.GetOperation(), name(req.GetVm()))
	op, err := current(s, req, call)
	if err != nil {
		return Change{}, err
	}
	if Committed(op.GetPhase()) {
		if proto.Equal(s.Record.GetOwner(), req.GetOwner()) && stands(s.Record, op) {
			return keep(s)
		}
		return Change{}, held(s.Record, call+" once more")
	}
	if !slices.Contains(commits, op.GetPhase()) {
		return Change{}, wrongPhase(call, op)
	}
	rec := edit(s)
	op = rec.Operation
	if req.GetReceipt() != "" {
		op.Receipt = req.GetReceipt() // in one write with the owner
	}
	if err := judge(rec, op, req.GetOwner(), call); err != nil {
		return Change{}, err
	}
	op.Phase, op.CommittedUnixNano = committed, now.UnixNano()
	if op.GetKind() == nodev1.Kind_KIND_CHECKPOINT { // the VM goes on: no other node owns it now
		list(rec, op, now)
		return Change{Record: rec}, nil
	}
	repository := ""
	if req.GetOwner().GetDigest() != "" {
		repository = op.GetRepository()
	}
	if op.GetKind() != nodev1.Kind_KIND_WAKE && stored(op) {
		list(rec, op, now)
	}
	if op.GetKind() != nodev1.Kind_KIND_HIBERNATE && stored(op) {
		spend(rec, op.GetDigest())
	}
	own(rec, req.GetOwner(), repository)
	rec.Place = op.GetPlace()
	if op.GetKind() == nodev1.Kind_KIND_WAKE {
		goesOn(rec, op.GetDigest())
	}
	switch d := rec.GetDeletion(); {
	case op.GetKind() == nodev1.Kind_KIND_WAKE: // the VM is wanted again
		rec.Deletion = nil
	case op.GetKind() == nodev1.Kind_KIND_HIBERNATE && record.Stuck(d): // the VM was to stay
		rec.Deletion, op.Deletion = nil, ""
	case op.GetKind() == nodev1.Kind_KIND_HIBERNATE: // the caller ordered it
		op.Deletion = d.GetId()
	}
	rec.Lost, rec.Kept, rec.Conflict = "", nil, "" // its state is in somebody's hands again
	return Change{Record: rec}, nil
}

// stands reports whether the VM was not claimed since op was committed. A checkpoint makes no owner.
func stands(rec *nodev1.Record, op *nodev1.Operation) bool {
	if op.GetKind() == nodev1.Kind_KIND_CHECKPOINT {
		return rec.GetGeneration() == op.GetGeneration()
	}
	return record.Follows(rec, op.GetGeneration())
}

// judge checks the new owner against the operation, and the source's vote.
func judge(rec *nodev1.Record, op *nodev1.Operation, owner *nodev1.Owner, call string) error {
	want := &nodev1.Owner{Node: op.GetDestination()}
	switch op.GetKind() {
	case nodev1.Kind_KIND_HIBERNATE:
		want = &nodev1.Owner{Digest: op.GetDigest()}
	case nodev1.Kind_KIND_CHECKPOINT:
		want = &nodev1.Owner{Node: op.GetSource()}
	}
	if !proto.Equal(owner, want) || proto.Size(want) == 0 {
		return fmt.Errorf("%s: owner %v is not the operation's %v: %w", call, owner, want, errdefs.ErrFailedPrecondition)
	}
	if op.GetKind() == nodev1.Kind_KIND_WAKE {
		return nil // the digest cannot run: it needs no vote
	}
	if op.GetPhase() != switching {
		return wrongPhase(call, op)
	}
	if slices.Contains(rec.GetSpent(), op.GetDigest()) {
		return fmt.Errorf("%s: snapshot %s was used before: %w", call, op.GetDigest(), errdefs.ErrFailedPrecondition)
	}
	return checkReceipt(op, call)
}

// checkReceipt wants the source's own word that this round's snapshot is whole and its
// VM is stopped. Of a checkpoint the VM goes on.
func checkReceipt(op *nodev1.Operation, call string) error {
	r, err := record.ParseReceipt(op.GetReceipt())
	if err != nil {
		return fmt.Errorf("%s: %w", call, err)
	}
	fits := r.Operation == op.GetId() && r.Attempt == op.GetAttempt() && r.Generation == op.GetGeneration() &&
		r.Digest == op.GetDigest()
	if !fits || !r.Stopped && op.GetKind() != nodev1.Kind_KIND_CHECKPOINT {
		return fmt.Errorf("%s: receipt %s is not of this attempt, generation and digest with the VM stopped: %w", call,
			op.GetReceipt(), errdefs.ErrFailedPrecondition)
	}
	return nil
}

// stored reports whether the digest of op is of a snapshot: that of a VM which was sent to
// its destination lies nowhere.
func stored(op *nodev1.Operation) bool {
	return op.GetDigest() != "" && !strings.HasPrefix(op.GetDigest(), record.StreamPrefix)
}
