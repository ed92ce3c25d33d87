package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// run is an operation under way. It holds nothing that a restart would miss.
type run struct {
	vm   *nodev1.VM
	uid  string // of the record; empty: not read yet. Of drive alone
	id   string
	kind nodev1.Kind
	done chan struct{}

	since time.Time // it was opened, by this host's clock

	killed int  // tries whose worker was killed; of drive alone
	onward bool // the step before has just ended well; of drive alone

	mu        sync.Mutex
	step      string
	waiting   string // why nothing happens
	interrupt context.CancelFunc
	phase     nodev1.Phase // and attempt, of the step
	attempt   uint32
}

func (r *run) enter(step string, op *nodev1.Operation, interrupt context.CancelFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.step, r.interrupt, r.phase, r.attempt = step, interrupt, op.GetPhase(), op.GetAttempt()
}

func (r *run) wait(reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting = reason
}

func (r *run) look() (step, waiting string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.step, r.waiting
}

// cut ends the step under way.
func (r *run) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.interrupt != nil {
		r.interrupt()
	}
}

// StepError says which step of which operation on which VM went wrong. It keeps the
// class of its cause.
type StepError struct {
	Step      string
	VM        *nodev1.VM
	Operation string
	Err       error
}

func (e *StepError) Error() string {
	return fmt.Sprintf("%s VM %s/%s (operation %s): %v", e.Step, e.VM.GetNamespace(), e.VM.GetId(), e.Operation, e.Err)
}

// Unwrap gives the cause.
func (e *StepError) Unwrap() error { return e.Err }

// step moves the operation of rec on, or fails. Taken twice it does its work once.
type step struct {
	name string
	do   func(ctx context.Context, e *Engine, rec *nodev1.Record) error
	// patient: before the commit, a store or a daemon that is out of reach is asked
	// again until the deadline, for nothing waits paused meanwhile (R5).
	patient bool
}

// next is the decision: the step that follows from the record.
func next(op *nodev1.Operation) (step, error) {
	switch {
	case record.Unplaced(op) && op.GetPhase() == nodev1.Phase_PHASE_PENDING:
		return placeStep, nil
	case record.Unplaced(op) && op.GetKind() == nodev1.Kind_KIND_WAKE && op.GetPhase() == nodev1.Phase_PHASE_ABORTING:
		return unplaceNow, nil
	}
	s, ok := map[nodev1.Kind]map[nodev1.Phase]step{
		nodev1.Kind_KIND_HIBERNATE:  hibernate,
		nodev1.Kind_KIND_WAKE:       wake,
		nodev1.Kind_KIND_CHECKPOINT: checkpoint,
		nodev1.Kind_KIND_MIGRATE:    move,
	}[op.GetKind()][op.GetPhase()]
	if !ok {
		return step{}, fmt.Errorf("operation %s: %s in %s: %w", op.GetId(), op.GetKind(), op.GetPhase(),
			errdefs.ErrNotImplemented)
	}
	return s, nil
}

// queueInterval is how often a move that waits for a place looks for one.
const queueInterval = 500 * time.Millisecond

// drive takes steps until the operation is settled or ctx ends.
func (e *Engine) drive(ctx context.Context, r *run) {
	if r.kind == nodev1.Kind_KIND_MIGRATE {
		defer e.watchOrders(ctx, r)()
	}
	pause := e.opts.RetryMin
	for ctx.Err() == nil {
		settled, err := e.turn(ctx, r)
		if settled {
			return
		}
		r.onward = err == nil
		if err == nil {
			r.wait("")
			pause = e.opts.RetryMin
			continue
		}
		if ctx.Err() != nil {
			return
		}
		r.wait(firstReason(err))
		if waiting(err) {
			pause = min(pause, queueInterval)
		} else {
			e.Events.Event(ctx, Event{Type: Retrying, Operation: r.id, VM: r.vm, Kind: r.kind, Err: err})
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, e.opts.RetryMax)
	}
}

// turn reads the record and takes the step that it asks for.
func (e *Engine) turn(ctx context.Context, r *run) (settled bool, err error) {
	rec, err := e.Records.Get(ctx, &nodev1.GetRequest{Vm: r.vm, Uid: r.uid, Recent: r.onward})
	if err != nil { // NotFound too: a copy of the records may be of before the VM
		return false, err
	}
	op := rec.GetOperation()
	if op.GetId() != r.id { // also of a record that was removed, which proves that it was
		return e.settled(ctx, r)
	}
	r.uid = rec.GetUid()
	if !e.drives(op) { // another controller has taken it over
		return true, nil
	}
	s, err := next(op)
	if err != nil {
		return false, err
	}
	if record.Unplaced(op) {
		r.since = time.Now() // its time counts from its place on
	}
	bound, cancel := e.bound(ctx, r, op)
	defer cancel()
	r.enter(s.name, op, cancel)
	step, end := e.begin(bound, op, s.name)
	err = s.do(step, e, rec)
	if end(err); err == nil || ctx.Err() != nil {
		return false, err
	}
	if _, waited := r.look(); waited != "" && bound.Err() != nil && !waiting(err) {
		err = &overError{err, waited}
	}
	err = &StepError{Step: s.name, VM: op.GetVm(), Operation: op.GetId(), Err: r.patience(e.opts.Node, op, err)}
	if !abortable(op.GetPhase()) || bound.Err() == nil && retryable(s, err) {
		return false, err
	}
	return false, e.giveUp(ctx, op, err)
}

// overError is a step whose time was over while it waited for something.
type overError struct {
	error
	reason string
}

func (e *overError) Error() string { return e.error.Error() + ": its time was over: " + e.reason }
func (e *overError) Unwrap() error { return e.error }

// firstReason is why an operation waits. A step whose time is over again and again still waits for the same.
func firstReason(err error) string {
	var over *overError
	if errors.As(err, &over) {
		return over.reason
	}
	return err.Error()
}

// passed reports whether op is not what it was: another controller, which drives it for a
// while where clocks differ, has taken the step that failed here.
func (e *Engine) passed(ctx context.Context, op *nodev1.Operation) (bool, error) {
	rec, err := e.Records.Get(ctx, &nodev1.GetRequest{Vm: op.GetVm()})
	now := rec.GetOperation()
	return now.GetId() != op.GetId() || now.GetAttempt() != op.GetAttempt() || now.GetPhase() != op.GetPhase() ||
		now.GetDigest() != op.GetDigest() || now.GetPlace() != op.GetPlace(), err
}

// bound is the deadline of a step: the operation's before the commit, its own
// after it and for a rollback. That of a node is by its own clock, which may be hours away from
// the controller's.
func (e *Engine) bound(ctx context.Context, r *run, op *nodev1.Operation) (context.Context, context.CancelFunc) {
	switch {
	case op.GetPhase() == nodev1.Phase_PHASE_PENDING && (op.GetKind() == nodev1.Kind_KIND_MIGRATE || record.Unplaced(op)):
		// it waits for a place for as long as it takes; for a node that is silent, silent bounds it
		return context.WithCancel(ctx)
	case op.GetKind() == nodev1.Kind_KIND_MIGRATE && abortable(op.GetPhase()):
		return context.WithDeadline(ctx, time.Unix(0, op.GetStartedUnixNano()).Add(e.timeout(op)))
	case abortable(op.GetPhase()):
		return context.WithDeadline(ctx, r.since.Add(e.timeout(op)))
	case op.GetPhase() == nodev1.Phase_PHASE_ABORTING:
		return context.WithTimeout(ctx, e.opts.Abort)
	default:
		return context.WithTimeout(ctx, e.opts.Step)
	}
}

// timeout is what an operation may take to its commit: a move from its place in the queue.
func (c *core) timeout(op *nodev1.Operation) time.Duration {
	if ms := op.GetTimeoutMs(); ms > 0 {
		return time.Duration(ms) * time.Millisecond
	}
	return c.opts.Operation
}

// abortable reports whether the commit is still ahead.
func abortable(p nodev1.Phase) bool {
	return p >= nodev1.Phase_PHASE_PENDING && p <= nodev1.Phase_PHASE_SWITCHING
}

// recordsError marks an error of the records: whether a change was made is open, and
// the next turn reads what is true.
type recordsError struct{ error }

func (e recordsError) Unwrap() error { return e.error }

func records(err error) error {
	if err == nil {
		return nil
	}
	return recordsError{err}
}

func retryable(s step, err error) bool {
	return waiting(err) ||
		record.Transient(err) && !errors.As(err, new(*killedError)) && (s.patient || errors.As(err, new(recordsError)))
}

// giveUp turns an operation that cannot be finished to its rollback. If the record has
// moved on meanwhile (committed, or aborted by order), that counts.
func (e *Engine) giveUp(ctx context.Context, op *nodev1.Operation, cause error) error {
	ctx, cancel := context.WithTimeout(ctx, e.opts.Abort)
	defer cancel()
	if op.GetKind() == nodev1.Kind_KIND_MIGRATE {
		if passed, err := e.passed(ctx, op); passed || err != nil {
			e.tellSuperseded(ctx, op, cause)
			return err
		}
	}
	err := e.advance(ctx, op, &nodev1.AdvanceRequest{Phase: nodev1.Phase_PHASE_ABORTING, Reason: cause.Error(),
		Class: record.Class(cause)})
	switch {
	case err == nil:
		e.tell(ctx, Aborting, op, cause)
		return nil
	case errdefs.IsFailedPrecondition(err) || errdefs.IsAborted(err):
		e.tellSuperseded(ctx, op, cause)
		return nil
	default:
		return errors.Join(cause, err)
	}
}

// tellSuperseded tells of an error that ends nothing, because the record has moved on. The
// end of a step that was called off is none.
func (e *Engine) tellSuperseded(ctx context.Context, op *nodev1.Operation, cause error) {
	if !errors.Is(cause, context.Canceled) {
		e.tell(ctx, Retrying, op, cause)
	}
}
