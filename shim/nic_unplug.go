package shim

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/shim/journal"
)

// unplug takes the NICs out of a running guest that is to sleep without them. Each is
// gone when the guest has let go: an eject under way is in no snapshot, and would
// be lost for ever. The journal says first that the guest may lack them.
func (n *nicSet) unplug(ctx context.Context) error {
	if !n.spec().Recycles() || n.wiring() == nil {
		return nil
	}
	n.plugging.Lock()
	defer n.plugging.Unlock()
	if err := n.vm.write(func(j *journal.Journal) { j.Unplugged = true }); err != nil {
		return err
	}
	return n.eject(ctx)
}

// eject is unplug without a word to the journal. n.plugging is held.
func (n *nicSet) eject(ctx context.Context) error {
	n.ejects++
	machine, _ := n.vm.current()
	bound := n.vm.nicBound()
	soon, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	for _, nic := range n.spec().NICs {
		err := machine.RemoveNIC(soon, nic.ID)
		switch {
		case errdefs.IsNotFound(err): // a wake could not plug it in
		case err != nil && soon.Err() != nil && ctx.Err() == nil:
			// Asking again would not help: the class is that of a refusal.
			return fmt.Errorf("the guest does not let go of NIC %s within %v (timeouts.nic); it needs a driver for PCI "+
				"hot-plug: %v: %w", nic.ID, bound, err, errdefs.ErrFailedPrecondition)
		case err != nil:
			return err
		}
	}
	return nil
}
