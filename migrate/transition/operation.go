package transition

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/api/moves"
	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// operationID fits a tag of a registry next to the generation.
var operationID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)

// Open starts an operation in phase Pending.
func Open(s State, req *nodev1.OpenRequest, now time.Time) (Change, error) {
	want := req.GetOperation()
	if err := checkOpen(req); err != nil {
		return Change{}, err
	}
	if s.Named != nil {
		if sameOrder(s.Named, req) {
			return keep(s)
		}
		return Change{}, fmt.Errorf("open operation %s on VM %s: the id is taken by a %s of VM %s: %w", want.GetId(),
			name(req.GetVm()), s.Named.GetKind(), name(s.Named.GetVm()), errdefs.ErrAlreadyExists)
	}
	call := fmt.Sprintf("open operation %s on VM %s", want.GetId(), name(req.GetVm()))
	switch {
	case s.Record == nil:
		return Change{}, missing(req.GetVm())
	case s.Record.GetOperation() != nil && !supersedes(s.Record.GetOperation(), want) &&
		!abandoned(s.Record.GetOperation(), req.GetLostNode()):
		return Change{}, held(s.Record, call)
	case s.Record.GetGeneration() != want.GetGeneration():
		return Change{}, held(s.Record, fmt.Sprintf("%s at generation %d", call, want.GetGeneration()))
	}
	op := &nodev1.Operation{
		Id: want.GetId(), Kind: want.GetKind(), Attempt: want.GetAttempt(), Phase: pending,
		Source: want.GetSource(), Destination: want.GetDestination(), Generation: want.GetGeneration(),
		Repository: want.GetRepository(), Tag: want.GetTag(), Digest: want.GetDigest(),
		EndExecs: want.GetEndExecs(), PauseBudgetMs: want.GetPauseBudgetMs(), Stdio: want.GetStdio(),
		Managed:     want.GetManaged(),
		Concurrency: want.GetConcurrency(), Bandwidth: want.GetBandwidth(), Paused: want.GetPaused(),
		Deletion:     want.GetDeletion(),
		SnapshotName: want.GetSnapshotName(), Pinned: want.GetPinned(), Manual: want.GetManual(),
		Driver: want.GetDriver(), Mode: want.GetMode(), WantedMode: want.GetMode(), DowntimeMs: want.GetDowntimeMs(),
		TimeoutMs: want.GetTimeoutMs(), AbortOn: want.GetAbortOn(),
		Prefix:  want.GetPrefix(),
		ByPlace: want.GetByPlace(), Wish: want.GetWish(), SourcePlace: s.Record.GetPlace(),
		OpenedUnixNano: now.UnixNano(), Vm: proto.CloneOf(req.GetVm()),
	}
	verb := "open operation " + want.GetId() + " on"
	if err := cmp.Or(fresh(s.Record, verb, req.GetUid(), want.GetGeneration()),
		disputed(s.Record, req.GetForceDigest() != "", call), ordered(s.Record, op, call),
		promised(s.Record, op, call), prefixed(s.Record, op, call)); err != nil {
		return Change{}, err
	}
	rec := edit(s)
	closed := rec.Operation
	lost := closed != nil && abandoned(closed, req.GetLostNode())
	if lost {
		save(rec, closed)
	}
	if err := admit(rec, op, req, call); err != nil {
		return Change{}, err
	}
	if err := notBeingDeleted(s.PendingDeletions, op.GetDigest(), call); err != nil {
		return Change{}, err
	}
	rec.Operation = op
	switch {
	case closed == nil:
	case lost:
		abandon(closed, req.GetLostNode(), now)
		if closed.GetPhase() == lostAtDest {
			rec.Kept = kept(closed)
		}
	default:
		closed.Phase, closed.ClosedUnixNano, closed.CleanupPending = succeeded, now.UnixNano(), true
	}
	if closed != nil && rec.GetOwner().GetNode() == "" {
		rec.Deletion = nil // it slept, and is wanted again
	}
	return Change{Record: rec, Closed: closed}, nil
}

// supersedes reports whether a wake may close the hibernate before it: the digest owns the VM. What its source has
// still to clean up is the source's own affair, and a source that is gone is not waited for. On the source itself
// the wake comes after it.
func supersedes(open, want *nodev1.Operation) bool {
	return want.GetKind() == nodev1.Kind_KIND_WAKE && open.GetKind() == nodev1.Kind_KIND_HIBERNATE &&
		(open.GetPhase() == committed || open.GetPhase() == cleaning) && open.GetSource() != want.GetDestination()
}

func checkOpen(req *nodev1.OpenRequest) error {
	op, wrong := req.GetOperation(), misplaced(req.GetOperation())
	switch {
	case !operationID.MatchString(op.GetId()):
		wrong = "id must match " + operationID.String()
	case op.GetAttempt() == 0:
		wrong = "attempt counts from 1"
	case wrong != "":
	case op.GetKind() < nodev1.Kind_KIND_HIBERNATE || op.GetKind() > nodev1.Kind_KIND_CHECKPOINT:
		wrong = "kind is unknown"
	case op.GetPhase() > pending:
		wrong = "an operation opens as Pending"
	case req.GetLostNode() != "" && (op.GetKind() != nodev1.Kind_KIND_WAKE || req.GetForceDigest() == "" ||
		req.GetLostNode() == op.GetDestination()):
		wrong = "a lost node is for a forced wake on another one"
	default:
		return CheckVM(req.GetVm())
	}
	return fmt.Errorf("open operation %q on VM %s: %s: %w", op.GetId(), name(req.GetVm()), wrong,
		errdefs.ErrInvalidArgument)
}

// misplaced says what is wrong with source, destination and digest of an operation that
// opens; empty: nothing.
func misplaced(op *nodev1.Operation) string {
	wrong := placedEarly(op)
	switch {
	case wrong != "":
	case captures(op.GetKind()) && (op.GetSource() == "" || op.GetDestination() != ""):
		wrong = "a hibernate or checkpoint has a source and no destination"
	case captures(op.GetKind()) && op.GetDigest() != "":
		wrong = "a hibernate or checkpoint has no digest before its capture" // R1: only this attempt's own counts
	case op.GetKind() == nodev1.Kind_KIND_WAKE && (op.GetSource() != "" || op.GetDestination() == "" && !op.GetByPlace()):
		wrong = "a wake has a destination and no source"
	case op.GetKind() == nodev1.Kind_KIND_MIGRATE && (op.GetSource() == "" ||
		op.GetDestination() == "" && !op.GetByPlace() || op.GetSource() == op.GetDestination()):
		wrong = "a migrate has a source and another destination"
	}
	return wrong
}

// prefixed refuses an order that says where its snapshot goes, and means another repository than the VM's own there.
func prefixed(rec *nodev1.Record, op *nodev1.Operation, call string) error {
	if op.GetPrefix() == "" {
		return nil
	}
	err, own := record.CheckPrefix(op.GetPrefix()), op.GetPrefix()+"/"+rec.GetUid()
	if err == nil && (op.GetKind() != nodev1.Kind_KIND_CHECKPOINT || op.GetRepository() != own) {
		err = fmt.Errorf("prefix %q is that of a checkpoint in %s: %w", op.GetPrefix(), own,
			errdefs.ErrInvalidArgument)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", call, err)
	}
	return nil
}

// captures reports whether an operation of this kind makes a snapshot at its source.
func captures(kind nodev1.Kind) bool {
	return kind == nodev1.Kind_KIND_HIBERNATE || kind == nodev1.Kind_KIND_CHECKPOINT
}

// sameOrder reports whether a known operation is what req asks for once more.
func sameOrder(op *nodev1.Operation, req *nodev1.OpenRequest) bool {
	want := req.GetOperation()
	if !proto.Equal(op.GetVm(), req.GetVm()) || op.GetKind() != want.GetKind() || op.GetSource() != want.GetSource() {
		return false
	}
	if op.GetKind() == nodev1.Kind_KIND_MIGRATE && op.GetRetarget() == heading(want) && op.GetRetarget() != "" {
		return true
	}
	if want.GetByPlace() {
		return op.GetByPlace() && op.GetWish() == want.GetWish()
	}
	return op.GetDestination() == want.GetDestination() // of one that was placed too: its node says so once more
}

// known reports whether digest is of a hibernate or checkpoint of this VM.
func known(rec *nodev1.Record, digest string) bool {
	listed := func(ref *nodev1.SnapshotRef) bool { return ref.GetDigest() == digest }
	return digest == rec.GetLost() || slices.Contains(rec.GetSpent(), digest) ||
		slices.ContainsFunc(rec.GetSnapshots(), listed)
}

// locate says where the digest lies; what the record knows counts more than the caller.
func locate(rec *nodev1.Record, op *nodev1.Operation) {
	if op.GetDigest() == rec.GetOwner().GetDigest() {
		op.Repository = rec.GetRepository()
	}
	for _, ref := range rec.GetSnapshots() {
		if ref.GetDigest() == op.GetDigest() {
			op.Repository, op.Tag = ref.GetRepository(), ref.GetTag()
		}
	}
}

// Advance moves the open operation to a later phase and stores its facts.
func Advance(s State, req *nodev1.AdvanceRequest, now time.Time) (Change, error) {
	call := fmt.Sprintf("advance operation %s of VM %s to %s", req.GetOperation(), name(req.GetVm()), req.GetPhase())
	op, err := current(s, req, call)
	if err != nil {
		return Change{}, err
	}
	turn := op.GetPhase() != req.GetPhase()
	placed := !record.Unplaced(op) || req.GetPhase() == pending || req.GetPhase() == aborting
	if Settled(op.GetPhase()) || turn && !may(advances, op, req.GetPhase()) || !placed {
		return Change{}, wrongPhase(call, op)
	}
	rec := edit(s)
	op = rec.Operation
	op.Phase = req.GetPhase()
	if err := facts(op, req, call); err != nil {
		return Change{}, err
	}
	if turn && req.GetReason() != "" { // the first reason counts: what follows is its echo
		op.Reason, op.Class = req.GetReason(), req.GetClass()
	}
	if turn && op.GetPhase() == preparing {
		op.StartedUnixNano = now.UnixNano()
	}
	if err := setRetarget(op, req, turn, call); err != nil {
		return Change{}, err
	}
	if turn && op.GetPhase() == reverting {
		revert(rec)
	}
	if proto.Equal(rec, s.Record) {
		return keep(s)
	}
	return Change{Record: rec}, nil
}

// revert is the way back of a destination that fenced itself before it ran anything: a
// commit of its own, to the owner before, under a new generation.
func revert(rec *nodev1.Record) {
	op := rec.Operation
	if op.GetKind() == nodev1.Kind_KIND_MIGRATE {
		own(rec, &nodev1.Owner{Node: op.GetSource()}, "")
		rec.Place = op.GetSourcePlace()
		rec.Spent = slices.DeleteFunc(rec.Spent, func(d string) bool { return d == op.GetDigest() })
		return
	}
	own(rec, &nodev1.Owner{Digest: op.GetDigest()}, op.GetRepository())
	rec.Spent = slices.DeleteFunc(rec.Spent, func(d string) bool { return d == op.GetDigest() })
}

// facts are written once: a second value comes from another round. What was measured
// differs with who measures: of two controllers that did the same, the first is believed.
func facts(op *nodev1.Operation, req *nodev1.AdvanceRequest, call string) error {
	for _, f := range []struct {
		name, value string
		field       *string
		same        func(a, b string) bool
	}{
		{"digest", req.GetDigest(), &op.Digest, nil},
		{"repository", req.GetRepository(), &op.Repository, nil},
		{"tag", req.GetTag(), &op.Tag, nil},
		{"receipt", req.GetReceipt(), &op.Receipt, sameReceipt},
		{"outcome", req.GetOutcome(), &op.Outcome, func(string, string) bool { return true }},
	} {
		if f.value == "" || f.value == *f.field || *f.field != "" && f.same != nil && f.same(*f.field, f.value) {
			continue
		}
		if *f.field != "" {
			return fmt.Errorf("%s: its %s is %q already: %w", call, f.name, *f.field, errdefs.ErrFailedPrecondition)
		}
		*f.field = f.value
	}
	if m := req.GetMode(); m != "" && m != op.GetMode() {
		if op.GetMode() != moves.ModeAuto {
			return fmt.Errorf("%s: its mode is %s already: %w", call, op.GetMode(), errdefs.ErrFailedPrecondition)
		}
		op.Mode = m
	}
	op.Cancelled = op.GetCancelled() || req.GetCancelled() && op.GetPhase() == aborting
	return nil
}

// sameReceipt reports whether both speak of the same snapshot, or stream, of one attempt.
func sameReceipt(a, b string) bool {
	one, err := record.ParseReceipt(a)
	two, err2 := record.ParseReceipt(b)
	return err == nil && err2 == nil && one.Operation == two.Operation && one.Attempt == two.Attempt &&
		one.Generation == two.Generation && one.Digest == two.Digest && one.Stopped == two.Stopped
}

// Finish closes the operation in a settled phase.
func Finish(s State, req *nodev1.FinishRequest, now time.Time) (Change, error) {
	call := fmt.Sprintf("finish operation %s of VM %s as %s", req.GetOperation(), name(req.GetVm()), req.GetPhase())
	op, err := current(s, req, call)
	if err != nil {
		return Change{}, err
	}
	if op.GetPhase() == req.GetPhase() && Settled(op.GetPhase()) {
		return keep(s)
	}
	if !may(settles, op, req.GetPhase()) {
		return Change{}, wrongPhase(call, op)
	}
	if to := op.GetRetarget(); to != "" { // noted since the driver looked, and answered: Retry obeys it
		return Change{}, fmt.Errorf("%s: it was turned to node %s: %w", call, to, errdefs.ErrFailedPrecondition)
	}
	rec := edit(s)
	closed := rec.Operation
	if req.GetPhase() == failed || req.GetPhase() == aborted {
		save(rec, closed)
	}
	rec.Operation = nil
	closed.Phase, closed.ClosedUnixNano, closed.CleanupPending = req.GetPhase(), now.UnixNano(), req.GetCleanupPending()
	if lost := closed.GetPhase() == lostAtDest || closed.GetPhase() == lostAtSrc; lost &&
		rec.GetOwner().GetDigest() == "" {
		rec.Lost, rec.Kept = left(rec, closed), kept(closed)
	}
	if closed.GetReason() == "" {
		closed.Reason = req.GetReason()
	}
	tried(rec, closed, now)
	return Change{Record: rec, Closed: closed}, nil
}

// left is the snapshot that is left of a VM which op has lost: the one that op was to
// restore, else the newest one. Empty: there is none.
func left(rec *nodev1.Record, op *nodev1.Operation) string {
	if op.GetKind() == nodev1.Kind_KIND_WAKE {
		return op.GetDigest()
	}
	return Newest(rec).GetDigest()
}

// ref is how a call names an operation (R10).
type ref interface {
	GetVm() *nodev1.VM
	GetOperation() string
	GetAttempt() uint32
	GetGeneration() uint64
}

// current answers the operation that r names, open or closed, unless r is stale.
func current(s State, r ref, call string) (*nodev1.Operation, error) {
	switch op := s.Named; {
	case s.Record == nil:
		return nil, missing(r.GetVm())
	case op == nil || !proto.Equal(op.GetVm(), r.GetVm()):
		return nil, fmt.Errorf("%s: the VM has no such operation: %w", call, errdefs.ErrInvalidArgument)
	case op.GetAttempt() != r.GetAttempt():
		return nil, fmt.Errorf("%s: attempt %d is over, this is %d: %w", call, r.GetAttempt(), op.GetAttempt(),
			errdefs.ErrAborted)
	case op.GetGeneration() != r.GetGeneration():
		return nil, fmt.Errorf("%s: it was opened for owner %d of the VM, not %d: "+
			"%w", call, op.GetGeneration(), r.GetGeneration(),
			errdefs.ErrFailedPrecondition)
	case !Settled(op.GetPhase()) && s.Record.GetRivals():
		return nil, held(s.Record, call)
	case !Settled(op.GetPhase()) && s.Record.GetOperation().GetId() != op.GetId():
		return nil, fmt.Errorf("%s: it is not the open one: %w", call, errdefs.ErrFailedPrecondition)
	default:
		return op, nil
	}
}

func wrongPhase(call string, op *nodev1.Operation) error {
	return fmt.Errorf("%s: it is in %s: %w", call, op.GetPhase(), errdefs.ErrFailedPrecondition)
}
