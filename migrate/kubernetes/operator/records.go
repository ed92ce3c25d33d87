package operator

import (
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/store"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Engine drives what is ordered. It answers once an order is durable. Given again, an order is answered as it stands.
// An error of class Unavailable says nothing of whether it was taken. ErrTurn: it was not, and soon will be.
type Engine interface {
	Order(ctx context.Context, order Order) error
	Abort(ctx context.Context, vm *nodev1.VM, id string) error
	// Ensure makes the record of a VM with that uid. One that is there under another uid is left, and refused.
	Ensure(ctx context.Context, vm *nodev1.VM, uid string) error
	// Recover wakes a VM from its newest snapshot. Its node is lost, and somebody vouches that nothing runs there.
	// Of the order it takes the record, and the id and the node if they are set. Of a move that has lost its destination,
	// the source goes on with the VM if the order says so. Else what the source holds is given up.
	Recover(ctx context.Context, order Order) error
	// GiveUp ends the record of a VM together with its node. That is lost, and somebody vouches that nothing runs there,
	// or the VM sleeps. ErrNodeAnswers: it is not lost.
	// hold are the operations whose snapshots stay (base.held).
	GiveUp(ctx context.Context, rec *nodev1.Record, hold []string) error
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
	// FromSource is of a Recover.
	FromSource bool
}

// records are what the operator itself changes of them: they begin and end with their objects.
type records struct {
	store   *store.Store
	service *controller.Service
	cached  client.Reader
}

// ErrTurn is of an order that an engine takes soon: its node takes others first.
var ErrTurn = fmt.Errorf("other orders come first: %w", errdefs.ErrResourceExhausted)

// ErrNodeAnswers is of a node that is to be called lost, and sends heartbeats.
var ErrNodeAnswers = fmt.Errorf("the node answers: %w", errdefs.ErrFailedPrecondition)

func vmOf(id string) *nodev1.VM { return &nodev1.VM{Namespace: store.Kubernetes, Id: id} }

// ensure makes the record of a VM, with the first of some uids that no other record has or had. The record says where
// its snapshots go. One that is there under another uid is left, and refused.
func (r records) ensure(ctx context.Context, id string, next decide.Action) error {
	vm, uids, class := vmOf(id), next.UIDs, next.Class
	state, err := r.store.Load(ctx, vm, transition.Asked{})
	if err != nil {
		return err
	}
	if err := transition.Closed(state.Store); err != nil {
		return err
	}
	req := &nodev1.EnsureRequest{Vm: vm, RestoreFrom: proto.CloneOf(next.From)}
	if next.From != nil {
		req.RestoreFrom.Id = uuid.NewString()
	}
	if class != nil {
		req.Prefix, req.Keep = class.Spec.Repository, decide.Keep(class)
		keys := decide.KeysOf(class)
		req.Sealed, req.Signed = keys.Seal, keys.Sign
	}
	if got := state.Record.GetUid(); state.Record != nil && !slices.Contains(uids, got) {
		return fmt.Errorf("ensure the record of VM %s: it is of %s, not of %s: %w", id, got, uids[0], errdefs.ErrConflict)
	}
	uid := ""
	if state.Record == nil {
		if uid, err = r.unused(ctx, vm, uids); err != nil {
			return err
		}
	}
	change, err := transition.Ensure(state, req, uid)
	if err != nil || change.Record == state.Record {
		return err
	}
	change.Under = state.Store.GetVersion()
	_, err = r.store.Apply(ctx, vm, 0, change)
	return err
}

// unused answers the first of some uids that no other record has or had. A VM's own uid is that of no other object. A
// node that has learned it may have made a record with it, which the cache knows: no list of all records for each VM.
// The uids of a member, of which there are more, the operator alone gives. Those of records that were removed are asked
// for.
func (r records) unused(ctx context.Context, vm *nodev1.VM, uids []string) (string, error) {
	all, others := &v1alpha1.VMRecordList{}, map[string]bool{}
	if err := r.cached.List(ctx, all, client.UnsafeDisableDeepCopy); err != nil {
		return "", fmt.Errorf("list records for uid %s: %w", uids[0], err)
	}
	for i := range all.Items {
		rec, _, err := store.Record(&all.Items[i])
		if err != nil && slices.ContainsFunc(uids, func(uid string) bool { return store.MayHave(&all.Items[i], uid) }) {
			return "", fmt.Errorf("give VM %s the uid %s: %w", vm.GetId(), uids[0], err)
		}
		if err != nil || rec == nil || rec.GetVm().GetId() == vm.GetId() {
			continue
		}
		if len(uids) == 1 && rec.GetUid() == uids[0] {
			return "", fmt.Errorf("give VM %s the uid %s: VMRecord %s has it: %w", vm.GetId(), uids[0], all.Items[i].Name,
				errdefs.ErrAlreadyExists)
		}
		others[rec.GetUid()] = true
	}
	if len(uids) > 1 {
		return r.service.FirstUnused(ctx, vm, uids, others)
	}
	return uids[0], nil
}
