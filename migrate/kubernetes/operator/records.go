package operator

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/store"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Engine drives what is ordered. It answers once an order is durable. Given again, an order is answered as it stands.
// An error of class Unavailable says nothing of whether it was taken.
type Engine interface {
	Order(ctx context.Context, order Order) error
	Abort(ctx context.Context, vm *nodev1.VM, id string) error
	// Ensure makes the record of a VM with that uid. One that is there under another uid is left, and refused.
	Ensure(ctx context.Context, vm *nodev1.VM, uid string) error
	// Recover wakes a VM from its newest snapshot. Its node is lost, and somebody vouches that nothing runs there.
	// Of the order it takes the record, and the id and the node if they are set.
	Recover(ctx context.Context, order Order) error
	// GiveUp ends the record of a VM together with its node. That is lost, and somebody vouches that nothing runs there.
	GiveUp(ctx context.Context, rec *nodev1.Record) error
	// Tell has the workload of a VM that runs see that a snapshot of it is Ready. Given again, it sees the same.
	Tell(ctx context.Context, told Told) error
}

// Order is one to an engine.
type Order struct {
	Record *nodev1.Record // as it was when the order was given
	Kind   nodev1.Kind
	ID     string // of the operation
	Node   string // a wish; empty: the scheduler's choice
	Policy v1alpha1.MigrationPolicy
}

// records are what the operator itself changes of them: they begin and end with their objects.
type records struct {
	store   *store.Store
	service *controller.Service
}

func vmOf(id string) *nodev1.VM { return &nodev1.VM{Namespace: store.Kubernetes, Id: id} }

// ensure makes the record of a VM with its uid. The record says where its snapshots go. One that is there under another
// uid is left, and refused.
func (r records) ensure(ctx context.Context, id, uid string, class *v1alpha1.VMSnapshotClass) error {
	vm := vmOf(id)
	state, err := r.store.Load(ctx, vm, transition.Asked{})
	if err != nil {
		return err
	}
	if err := transition.Closed(state.Store); err != nil {
		return err
	}
	req := &nodev1.EnsureRequest{Vm: vm}
	if class != nil {
		req.Prefix, req.Keep = class.Spec.Repository, decide.Keep(class)
	}
	change, err := transition.Ensure(state, req, uid)
	if err != nil {
		return err
	}
	if change.Record == state.Record {
		if got := state.Record.GetUid(); got != uid {
			return fmt.Errorf("ensure the record of VM %s: it is of %s, not of %s: %w", id, got, uid, errdefs.ErrConflict)
		}
		return nil
	}
	change.Under = state.Store.GetVersion()
	_, err = r.store.Apply(ctx, vm, 0, change)
	return err
}

// remove ends a record. The snapshots that it lists are owed from then on.
func (r records) remove(ctx context.Context, id, uid string) error {
	_, err := r.service.Remove(ctx, &nodev1.RemoveRequest{Vm: vmOf(id), Uid: uid, Force: true, DropSnapshots: true})
	return err
}
