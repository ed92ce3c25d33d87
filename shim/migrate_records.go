package shim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/starts"
)

// vmRecord is the cluster's record of the VM, as its shim asks and changes it.
type vmRecord struct {
	records nodev1.RecordsService // nil: the node keeps none
	node    string                // this one's name
	vm      *nodev1.VM
	count   func(starts.Observation) // is told of a wake that is over
}

func (n vmName) name() *nodev1.VM { return &nodev1.VM{Namespace: n.namespace, Id: n.id} }

func (vm *VM) record() vmRecord {
	return vmRecord{records: vm.host.Records, node: vm.host.Config.Node, vm: vm.name(), count: vm.note}
}

// unavailable makes the failure to reach the record a class that callers retry; what
// the record itself has answered keeps its own.
func unavailable(err error) error {
	var held *record.HeldError
	if err == nil || errors.As(err, &held) {
		return err
	}
	native := errgrpc.ToNative(err)
	for _, class := range []func(error) bool{errdefs.IsFailedPrecondition, errdefs.IsInvalidArgument, errdefs.IsAborted,
		errdefs.IsNotFound, errdefs.IsAlreadyExists, errdefs.IsUnavailable} {
		if class(native) {
			return native
		}
	}
	return fmt.Errorf("%w: %w", err, errdefs.ErrUnavailable)
}

// endOwnership gives up a VM whose task is gone. Without records, or without the node's
// daemon, there is nothing to give up: the node stays the owner and may boot it again. A VM without
// a record (generation 0) has nothing to give up either.
func (r vmRecord) endOwnership(ctx context.Context, generation uint64, uid string) error {
	if r.records == nil || generation == 0 {
		return nil
	}
	_, err := r.records.Disown(ctx, &nodev1.DisownRequest{Vm: r.vm, Node: r.node, Generation: generation, Uid: uid})
	var held *record.HeldError
	if errors.As(err, &held) || errdefs.IsNotFound(err) || errdefs.IsFailedPrecondition(err) {
		return nil // it belongs to somebody else now
	}
	return unavailable(err)
}

func (r vmRecord) advance(j *journal.Journal, phase nodev1.Phase, reason string) *nodev1.AdvanceRequest {
	return &nodev1.AdvanceRequest{
		Vm: r.vm, Operation: j.Operation, Attempt: j.Attempt, Generation: j.Generation, Phase: phase, Reason: reason,
	}
}

// abortWake ends a wake that the shim opened and that has committed nothing.
func (r vmRecord) abortWake(ctx context.Context, j *journal.Journal, reason string) error {
	if _, err := r.records.Advance(ctx, r.advance(j, nodev1.Phase_PHASE_ABORTING, reason)); err != nil {
		return unavailable(err)
	}
	return r.finishWake(ctx, j, nodev1.Phase_PHASE_FAILED, reason)
}

// revertWake gives the VM back to its snapshot after a commit, because nothing ran.
func (r vmRecord) revertWake(ctx context.Context, j *journal.Journal, reason string) error {
	if _, err := r.records.Advance(ctx, r.advance(j, nodev1.Phase_PHASE_REVERTING, reason)); err != nil {
		return unavailable(err)
	}
	return r.finishWake(ctx, j, nodev1.Phase_PHASE_FAILED, reason)
}

func (r vmRecord) finishWake(ctx context.Context, j *journal.Journal, phase nodev1.Phase, reason string) error {
	_, err := r.records.Finish(ctx, &nodev1.FinishRequest{
		Vm: r.vm, Operation: j.Operation, Attempt: j.Attempt, Generation: j.Generation, Phase: phase, Reason: reason,
	})
	if err != nil {
		return unavailable(err)
	}
	r.count(starts.Observation{Wake: wakeResult[phase]})
	return nil
}

// wakeResult is how a settled wake counts.
var wakeResult = map[nodev1.Phase]string{
	nodev1.Phase_PHASE_SUCCEEDED: starts.WakeOK, nodev1.Phase_PHASE_FAILED: starts.WakeFailed,
	nodev1.Phase_PHASE_LOST_AT_DEST: starts.WakeLost,
}

// commitWake asks for the claim once more before the VM runs: only the record's word
// lets a restored VM execute. It answers the generation that the VM runs under.
func (r vmRecord) commitWake(ctx context.Context, j *journal.Journal) (uint64, error) {
	rec, err := r.records.Commit(ctx, &nodev1.CommitRequest{
		Vm: r.vm, Operation: j.Operation, Attempt: j.Attempt, Generation: j.Generation,
		Owner: &nodev1.Owner{Node: r.node},
	})
	if err != nil {
		return 0, unavailable(err)
	}
	if rec.GetOwner().GetNode() != r.node || !record.Follows(rec, j.Generation) {
		return 0, fmt.Errorf("VM %s/%s is owned by %v at generation %d: %w", r.vm.GetNamespace(), r.vm.GetId(),
			rec.GetOwner(), rec.GetGeneration(), errdefs.ErrFailedPrecondition)
	}
	return rec.GetGeneration(), nil
}

// committed is commitWake of a move, which the controller alone commits: the record is
// asked whether it has.
func (r vmRecord) committed(ctx context.Context, j *journal.Journal) (uint64, error) {
	rec, err := r.records.Get(ctx, &nodev1.GetRequest{Vm: r.vm, Recent: true})
	if err != nil {
		return 0, unavailable(err)
	}
	op := rec.GetOperation()
	mine := op.GetId() == j.Operation && op.GetAttempt() == j.Attempt && op.GetPhase() == nodev1.Phase_PHASE_COMMITTED
	if !mine || rec.GetOwner().GetNode() != r.node || !record.Follows(rec, j.Generation) {
		return 0, fmt.Errorf("operation %s has not given VM %s/%s to this node: owner %v at generation %d, operation %s "+
			"in %s: %w",
			j.Operation, r.vm.GetNamespace(), r.vm.GetId(), rec.GetOwner(), rec.GetGeneration(), op.GetId(), op.GetPhase(),
			errdefs.ErrFailedPrecondition)
	}
	return rec.GetGeneration(), nil
}

// checkCommitted refuses a Start that comes before the commit of a move, or for a claim that does not stand. A refusal
// costs the VM nothing. It answers the generation of the commit; 0 means that there is nothing to ask. A Start after
// the end of a VM that never ran, by a move or a wake, has the fence written that is owed.
func (s *starting) checkCommitted(ctx context.Context) (uint64, error) {
	vm := s.vm
	j := vm.journal.Load()
	if j.Phase != journal.Ready {
		return 0, s.claimed(ctx)
	}
	if vm.inState(Stopped) { // it never ran: its end could not be written down, as on a full disk
		return 0, errors.Join(fmt.Errorf("VM %s has ended: %w", vm.id, errdefs.ErrFailedPrecondition),
			vm.fence(ctx, "it ended before it ran"))
	}
	if !j.Move {
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(vm.host.Config.Timeouts.Daemon))
	defer cancel()
	return vm.record().committed(ctx, j)
}
