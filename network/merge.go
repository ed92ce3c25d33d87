package network

import (
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/spec"
)

// Merge gives the NICs of a VM that wakes on other interfaces: identity (ID, name,
// slot, MAC, MTU) from the VM's device state, addresses and routes from the node
// where it wakes. The result is in the order of now: put each into its Link before
// Attach. changed says that the guest has to be re-addressed.
//
// NICs meet their interface by name, or by position where the names differ. The
// snapshot alone says how many there are. An interface with a smaller MTU than
// the guest uses is refused.
func Merge(old []spec.NIC, now []Link) (_ []spec.NIC, changed bool, err error) {
	if len(old) != len(now) {
		return nil, false, fmt.Errorf("merge NICs: the VM has %d, the network namespace %d interfaces: %w",
			len(old), len(now), errdefs.ErrFailedPrecondition)
	}
	named := map[string]spec.NIC{}
	for _, n := range old {
		named[n.Name] = n
	}
	byName := len(named) == len(old) && !slices.ContainsFunc(now, func(l Link) bool {
		_, ok := named[l.NIC.Name]
		return !ok
	})
	out := make([]spec.NIC, len(now))
	for i, l := range now {
		nic := old[i]
		if byName {
			nic = named[l.NIC.Name]
		}
		if l.Found.MTU < nic.MTU {
			return nil, false, fmt.Errorf("merge NIC %s: the guest's MTU is %d, interface %s has %d: %w",
				nic.ID, nic.MTU, l.Interface, l.Found.MTU, errdefs.ErrFailedPrecondition)
		}
		if !slices.Equal(nic.Addresses, l.NIC.Addresses) || !slices.Equal(nic.Routes, l.NIC.Routes) {
			changed = true
		}
		nic.Addresses, nic.Routes = slices.Clone(l.NIC.Addresses), slices.Clone(l.NIC.Routes)
		out[i] = nic
	}
	return out, changed, nil
}
