package node

import (
	"context"
	"errors"
	"log/slog"
	"strings"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/network"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// RemoveStrayTaps deletes the taps that stand for no VM of this node any more. A VM is written
// down before its taps are made, and forgotten after they are gone.
func (m *Machines) RemoveStrayTaps(ctx context.Context) error {
	namespaces, err := network.Namespaces()
	errs := []error{err} // what could not be looked at holds up nothing else
	node := m.Config.NodeID()
	for _, path := range namespaces {
		removed, err := network.Orphans(ctx, path, func(o network.Owner) bool {
			ns, id, ok := strings.Cut(o.VM, "/")
			if o.Node != node || !ok {
				return true
			}
			known, err := m.Known(&nodev1.VM{Namespace: ns, Id: id})
			return known || err != nil
		})
		for _, o := range removed {
			slog.WarnContext(ctx, "tap of a VM that is not here deleted", "vm", o.VM, "netns", path)
		}
		if err != nil && !errdefs.IsNotFound(err) { // the namespace may have gone meanwhile
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
