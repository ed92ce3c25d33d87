package shim

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/shim/journal"
)

// claimed refuses the Start of a fresh boot whose claim does not stand any more: the shim was stopped between claim and
// journal for so long that the node gave the VM up, or its store was put back. It costs the VM nothing: what cannot be
// told now may be told by the next Start. From the journal on the VM is not given up, so that what the record says now
// holds until the guest runs.
func (s *starting) claimed(ctx context.Context) error {
	vm := s.vm
	j := vm.journal.Load()
	if vm.host.Records == nil || vm.origin.restored || j.Phase != journal.Own || j.Generation == 0 ||
		!vm.inState(Created) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(vm.host.Config.Timeouts.Daemon))
	defer cancel()
	rec, err := vm.host.Records.Get(ctx, &nodev1.GetRequest{Vm: vm.name()})
	if errdefs.IsNotFound(err) {
		return fmt.Errorf("VM %s/%s was claimed for this task, and the controller does not know it any more. To go "+
			"on, delete "+
			"the task and make it anew: %w", vm.namespace, vm.id, errdefs.ErrFailedPrecondition)
	}
	if err != nil {
		return unavailable(err)
	}
	if rec.GetUid() != j.Spec.UID || rec.GetOwner().GetNode() != vm.host.Config.Node ||
		rec.GetGeneration() != j.Generation || rec.GetRivals() || rec.GetMissing() {
		return fmt.Errorf("VM %s/%s was claimed for this task, and belongs to %v by now. To go on, delete the task and "+
			"make it anew: %w", vm.namespace, vm.id, rec.GetOwner(), errdefs.ErrFailedPrecondition)
	}
	return nil
}
