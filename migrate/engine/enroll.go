package engine

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Enroll gives a VM that runs here its record, if it was started while this node kept none. stays says that
// the VM is to run on here after what is ordered: then its shim must be one that hears of a later owner.
//
// The record is born with the uid that the VM runs under, and owned by this node. A VM with a claim of other
// records (a generation) is left alone: they may have given it away.
func (e *Engine) Enroll(ctx context.Context, vm *nodev1.VM, stays bool) error {
	rec, err := e.Records.Get(ctx, &nodev1.GetRequest{Vm: vm})
	if err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	unrecorded := err != nil
	q, asked := e.Observer.Query(ctx, vm)
	switch {
	case asked != nil && !unrecorded:
		return nil // the operation asks for itself
	case errdefs.IsNotFound(asked):
		return fmt.Errorf("no VM %s runs on node %s, and none sleeps: %w", name(vm), e.opts.Node, errdefs.ErrNotFound)
	case asked != nil:
		return fmt.Errorf("the controller knows no VM %s, and its shim does not answer: %w", name(vm), asked)
	case !unrecorded && (q.GetRecord() != recordOwn || q.GetGeneration() != 0 || q.GetUid() == ""):
		return nil
	case unrecorded:
		if rec, err = e.enroll(ctx, vm, q); err != nil {
			return err
		}
	}
	switch {
	case rec.GetUid() != q.GetUid():
		return fmt.Errorf("VM %[1]s was started while the controller did not know it, and it knows another VM of that name. "+
			"To give that one up, and order this again: godwit rm %[1]s: %[2]w", name(vm), errdefs.ErrFailedPrecondition)
	case stays && !q.GetEnrolls():
		return fmt.Errorf("VM %[1]s was started by an earlier version of godwit. To go on, let it sleep and wake first: "+
			"godwit hibernate %[1]s, godwit wake %[1]s: %[2]w", name(vm), errdefs.ErrFailedPrecondition)
	}
	return nil
}

func (e *Engine) enroll(ctx context.Context, vm *nodev1.VM, q *machinev1.QueryResponse) (*nodev1.Record, error) {
	switch {
	case q.GetGeneration() != 0 || q.GetUid() == "":
		return nil, fmt.Errorf("VM %s was started under another controller than the one that node %s asks now. To "+
			"go on, give "+
			"the node its controller.address back, or end the VM and start it again: %w", name(vm), e.opts.Node,
			errdefs.ErrFailedPrecondition)
	case q.GetRecord() != recordOwn || q.GetState() == stateStopped:
		return nil, fmt.Errorf("VM %s does not run (%s): %w", name(vm), q.GetState(), errdefs.ErrFailedPrecondition)
	}
	return e.Records.Ensure(ctx, &nodev1.EnsureRequest{Vm: vm, Uid: q.GetUid(), Node: e.opts.Node})
}
