package decide

import (
	"time"

	coordination "k8s.io/api/coordination/v1"
)

// ClaimDuration is how long the claim of a capture lasts that is not renewed.
const ClaimDuration = 15 * time.Second

// Claims are the names of the leases by which a snapshot may be claimed. An agent of the release before, in a pod that
// is not new yet, has one without its node's name. The policy has no other node hold it up.
func (o Snapshot) Claims() []string {
	all := []string{OrderName(o.Object.UID)}
	for _, node := range o.Nodes() {
		all = append(all, ClaimName(o.Object.UID, node))
	}
	return all
}

// Claimed reports whether a lease says that its node may be about to capture. The node writes it, and may lie: no claim
// lasts longer than a claim does, and none was renewed in a time to come, but for what clocks differ.
func Claimed(lease *coordination.Lease, now time.Time) bool {
	s := lease.Spec
	if s.HolderIdentity == nil || *s.HolderIdentity == "" || s.RenewTime == nil || s.LeaseDurationSeconds == nil {
		return false
	}
	lasts := min(time.Duration(*s.LeaseDurationSeconds)*time.Second, ClaimDuration)
	since := now.Sub(s.RenewTime.Time)
	return since > -2*lasts && since < 2*lasts // twice: two hosts' clocks
}
