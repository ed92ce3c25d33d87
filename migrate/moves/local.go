package moves

import (
	"context"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Local is the service of moves as this host's root has it: the controller's, but a wake on this
// node needs no way from the controller back.
type Local struct {
	nodev1.MovesService
	Self string
	Node interface {
		Wake(ctx context.Context, req *nodev1.WakeRequest) (*nodev1.StatusResponse, error)
		// Enroll gives a VM that runs on this node without a record its record.
		Enroll(ctx context.Context, vm *nodev1.VM) error
	}
}

// Migrate implements nodev1.MovesService. The VM may have been started here before the node was in a cluster.
func (m *Local) Migrate(ctx context.Context, req *nodev1.MigrateRequest) (*nodev1.StatusResponse, error) {
	status, err := m.MovesService.Migrate(ctx, req)
	if !errdefs.IsNotFound(err) {
		return status, err
	}
	if err := m.Node.Enroll(ctx, req.GetVm()); err != nil {
		return nil, err
	}
	return m.MovesService.Migrate(ctx, req)
}

// Wake implements nodev1.MovesService. A controller of a build before chooses no node: the VM
// wakes here, as it did with that.
func (m *Local) Wake(ctx context.Context, order *nodev1.WakeOrder) (*nodev1.StatusResponse, error) {
	if order.GetOn() == m.Self {
		return m.Node.Wake(ctx, order.GetWake())
	}
	status, err := m.MovesService.Wake(ctx, order)
	if errdefs.IsNotImplemented(err) && order.GetOn() == "" {
		return m.Node.Wake(ctx, order.GetWake())
	}
	return status, err
}
