package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/api/record"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// localVM is a VM that this node has, as its shim and its record speak of it. The shim was asked
// before the record and after it, and said the same: what it says held when the record spoke.
type localVM struct {
	vm  *nodev1.VM
	q   *machinev1.QueryResponse
	rec *nodev1.Record // nil: none of this VM, though there may be one of another VM of that name

	removed bool // without rec: the record was removed, by the controller's word
}

func (s localVM) ref() *machinev1.Ref { return s.q.GetRef() }

// under reports whether the operation that holds the VM here is the one that is open.
func (s localVM) under() bool {
	return s.rec.GetOperation() != nil && s.rec.GetOperation().GetId() == s.ref().GetOperation()
}

// kept reports whether the record wants this node to keep what it holds.
func (s localVM) kept() bool {
	k := s.rec.GetKept()
	return k != nil && k.GetOperation() == s.ref().GetOperation() && k.GetAttempt() == s.ref().GetAttempt()
}

// stray ends what this node has of a VM and must not have. That is what an operation has left that was settled
// while this node did not answer. It is also a VM that runs on though its record gave it to another owner. Owner
// and generation decide, not the operations, which are forgotten one day. Without an answer of the records nothing
// is ended.
//
// Each ending names what was seen. What carries it out refuses if that is not so any more. known is what was listed
// of the VM, if it was: enough to do nothing by.
func (r *rounds) stray(ctx context.Context, vm *nodev1.VM, known *nodev1.Record) error {
	q, err := r.Observer.Query(ctx, vm)
	if err != nil || r.atRest(q, known) {
		return nil // no shim yet, or none that answers; or all is well
	}
	s, err := r.observeVM(ctx, vm, q)
	switch {
	case err != nil:
		return err
	case s.newer(r.opts.Node):
		return r.doubt(ctx)
	case s.rec.GetRivals():
		return nil
	}
	act := r.judge(s)
	if act == nil {
		return nil
	}
	rec := s.rec
	if rec == nil {
		rec = &nodev1.Record{Vm: vm}
	}
	if err := r.vouched(ctx, rec); err != nil {
		return err
	}
	// An operation that went on between the two answers may have changed what the shim says: the
	// VM of an attempt that was over in the record has never run if it has not run now.
	again, err := r.Observer.Query(ctx, vm)
	if err != nil || !same(s.q, again) {
		return nil // the next round looks anew
	}
	ctx, cancel := context.WithTimeout(ctx, r.opts.Step)
	defer cancel()
	if err := act(ctx); err != nil {
		return fmt.Errorf("VM %s: %w", name(vm), err)
	}
	return nil
}

// observeVM asks the record of a VM after its shim, which has answered q.
func (r *rounds) observeVM(ctx context.Context, vm *nodev1.VM, q *machinev1.QueryResponse) (*localVM, error) {
	s := &localVM{vm: vm, q: q}
	var err error
	s.rec, err = r.Records.Get(ctx, &nodev1.GetRequest{Vm: vm, Uid: q.GetUid()})
	switch {
	case errdefs.IsNotFound(err), err == nil && (s.rec.GetRemoved() || q.GetUid() != "" && s.rec.GetUid() != q.GetUid()):
		s.removed, s.rec = s.rec.GetRemoved(), nil
	case err != nil:
		return nil, fmt.Errorf("VM %s: %w", name(vm), err)
	}
	return s, nil
}

// same reports whether a shim has said twice that it has the same of the same task.
func same(a, b *machinev1.QueryResponse) bool {
	return a.GetRecord() == b.GetRecord() && a.GetGeneration() == b.GetGeneration() && a.GetUid() == b.GetUid() &&
		a.GetCreatedUnixNano() == b.GetCreatedUnixNano() && proto.Equal(a.GetRef(), b.GetRef())
}

// ending is what is to be done about a VM; nil: nothing.
type ending func(context.Context) error

func (r *rounds) judge(s *localVM) ending {
	switch s.q.GetRecord() {
	case recordPrepared, recordReleased:
		return r.prepared(s)
	case recordIncoming, recordReady, recordFenced:
		return r.arriving(s)
	case recordSending:
		return r.sending(s)
	case recordOwn:
		return r.superseded(s)
	}
	return nil
}

// releaseDeparted frees what a source has of a VM that is elsewhere, with its addresses if a node has it. What
// containerd holds is left to a VM that is on its way back.
func (r *rounds) releaseDeparted(ctx context.Context, s *localVM) error {
	owner, digest := s.rec.GetOwner().GetNode(), s.q.GetDigest()
	back := s.rec.GetOperation().GetDestination() == r.opts.Node
	if !back {
		if err := r.Departed.MarkDeparted(ctx, s.vm, s.q.GetCreatedUnixNano(), digest, owner); err != nil {
			return err
		}
	}
	err := r.Machines.Release(ctx, s.vm, &machinev1.ReleaseRequest{Ref: s.ref(), Digest: digest, Moved: owner != ""})
	if err != nil && !errdefs.IsNotFound(err) || back {
		return err
	}
	return r.cleanUp(ctx, s.vm, digest, owner)
}

// cleanUp ends what containerd holds. A failure is remembered: once the task is deleted no
// shim reminds of what is left.
func (r *rounds) cleanUp(ctx context.Context, vm *nodev1.VM, digest, owner string) error {
	err := r.Departed.CleanDeparted(ctx, vm, digest, owner)
	r.mu.Lock()
	defer r.mu.Unlock()
	if delete(r.cleanups, name(vm)); err != nil {
		r.cleanups[name(vm)] = pendingCleanup{vm, digest, owner}
	}
	return err
}

// pendingCleanup is a VM that left, and of which containerd holds something.
type pendingCleanup struct {
	vm            *nodev1.VM
	digest, owner string
}

// retryCleanups does again what cleanUp could not do, unless the VM is on its way back.
func (r *rounds) retryCleanups(ctx context.Context) error {
	r.mu.Lock()
	all := slices.Collect(maps.Values(r.cleanups))
	r.mu.Unlock()
	var errs []error
	for _, u := range all {
		rec, err := r.Records.Get(ctx, &nodev1.GetRequest{Vm: u.vm})
		switch {
		case err != nil && !errdefs.IsNotFound(err):
			errs = append(errs, err)
		case rec.GetOwner().GetNode() == r.opts.Node || rec.GetOperation().GetDestination() == r.opts.Node:
			r.mu.Lock()
			delete(r.cleanups, name(u.vm))
			r.mu.Unlock()
		default:
			errs = append(errs, r.cleanUp(ctx, u.vm, u.digest, u.owner))
		}
	}
	return errors.Join(errs...)
}

// arriving is a destination whose VM has never run, of an attempt that is over: its shim ends it,
// and refuses if it has run. What containerd has of it goes after that, in this round or a later one.
func (r *rounds) arriving(s *localVM) ending {
	ref := s.ref()
	switch {
	case ref.GetOperation() == "":
		return nil
	case s.rec == nil && !r.long("no record", s):
		return nil
	case s.under() && s.rec.GetOperation().GetAttempt() == ref.GetAttempt():
		return nil
	case s.rec != nil && s.rec.GetGeneration() < ref.GetGeneration(): // it speaks of a time before the attempt
		return nil
	}
	return func(ctx context.Context) error {
		if s.q.GetRecord() != recordFenced {
			err := r.Machines.Abort(ctx, s.vm, &machinev1.AbortRequest{Ref: ref, Reason: overReason(ref)})
			if err != nil && !errdefs.IsNotFound(err) {
				return err
			}
		}
		return r.Tasks.Clear(ctx, s.vm, Restore{Intent: record.Intent{
			Operation: ref.GetOperation(), Attempt: ref.GetAttempt(),
			Digest: cmp.Or(s.q.GetDigest(), record.StreamPrefix+ref.GetOperation()),
		}})
	}
}

// superseded is a VM that runs here. Its node was called lost, and its record went on without it: no client may
// meet both. A VM without any record runs on: that says nothing.
func (r *rounds) superseded(s *localVM) ending {
	rec, owner := s.rec, s.rec.GetOwner()
	switch {
	case undecided(rec, s.q.GetGeneration()):
		return nil
	case rec == nil, s.q.GetState() == stateStopped, rec.GetGeneration() <= s.q.GetGeneration() &&
		!record.Predates(rec, s.q.GetGeneration()), owner.GetNode() == r.opts.Node, s.under():
		return nil
	case owner.GetNode() == "" && owner.GetDigest() == "" && !r.long("no owner", s): // its task may be being deleted
		return nil
	}
	return func(ctx context.Context) error {
		reason := fmt.Sprintf("%s; it ran here under %d", (&record.HeldError{Record: rec}).Holder(), s.q.GetGeneration())
		if err := r.Departed.MarkDeparted(ctx, s.vm, s.q.GetCreatedUnixNano(), owner.GetDigest(),
			owner.GetNode()); err != nil {
			return err
		}
		if err := r.Machines.EndSuperseded(ctx, s.vm, rec.GetGeneration(), reason); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
		r.Events.Event(ctx, Event{Type: Superseded, VM: s.vm, Reason: reason})
		return r.cleanUp(ctx, s.vm, owner.GetDigest(), owner.GetNode())
	}
}

// undecided reports whether a person is to decide what becomes of a VM after the store was put back. The source of a
// move holds it since its vote, and it may have run elsewhere since: this VM may be that one.
func undecided(rec *nodev1.Record, generation uint64) bool {
	k := record.KeptOf(rec)
	return k != nil && k.GetDestination() == "" && rec.GetOwner().GetNode() == "" && rec.GetOwner().GetDigest() == "" &&
		record.Predates(rec, generation)
}

// long reports whether a VM has stood so for Options.Grace.
func (r *rounds) long(what string, s *localVM) bool {
	return r.since(fmt.Sprintf("%s: %s/%d/%d", what, name(s.vm), s.q.GetGeneration(), s.rec.GetVersion()))
}
