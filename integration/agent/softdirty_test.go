//go:build integration && kvmhost

package agent

import (
	"testing"

	"godwit.dev/godwit/snapshot/track"
)

// TestSoftDirty is TestTracking on a kernel that has soft-dirty bits, as that of the KVM
// ring.
func TestSoftDirty(t *testing.T) {
	m := newTracked(t)
	tracker := m.tracker(t, track.SoftDirty)
	for round := range 3 {
		m.interval(t, tracker, round)
	}
}
