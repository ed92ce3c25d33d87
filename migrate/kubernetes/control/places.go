package control

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	"k8s.io/apimachinery/pkg/types"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/store"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Places refuses a checkpoint that goes elsewhere than its VM's others, unless it is a work order of that node which
// says so. The order is read from the API server itself.
func (p *Pods) Places(ctx context.Context, rec *nodev1.Record, op *nodev1.Operation, node string) error {
	order := &v1alpha1.VMSnapshotContent{}
	there, err := p.View.Get(ctx, types.NamespacedName{Name: decide.OrderName(types.UID(op.GetId()))}, order)
	if err != nil {
		return unread(err)
	}
	if !there || rec.GetVm().GetNamespace() != store.Kubernetes || !decide.Orders(order, rec, op, node) {
		return fmt.Errorf("operation %s of VM %s: prefix %q: no work order of node %s says so: %w", op.GetId(),
			rec.GetVm().GetId(), op.GetPrefix(), node, errdefs.ErrPermissionDenied)
	}
	return nil
}
