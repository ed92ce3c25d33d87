package decide

import (
	"time"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// failedWakes answers how many of those wakes have failed since one of them succeeded, and the last. left is how long
// the next try waits; 0: it may be now. The oldest is the first.
func failedWakes(closed []*nodev1.Operation, of func(*nodev1.Operation) bool, now time.Time) (failures int,
	last *nodev1.Operation, left time.Duration) {
	for _, op := range closed {
		switch {
		case op.GetKind() != nodev1.Kind_KIND_WAKE || !of(op):
		case op.GetPhase() == nodev1.Phase_PHASE_SUCCEEDED:
			failures, last = 0, nil
		case op.GetPhase() == nodev1.Phase_PHASE_FAILED:
			failures, last = failures+1, op
		}
	}
	if failures == 0 {
		return 0, nil, 0
	}
	pause := backOff(failures - 1)
	left = pause - now.Sub(time.Unix(0, last.GetClosedUnixNano()))
	if left > 2*pause { // twice: two hosts' clocks. More: the clock was set back since
		left = 0
	}
	return failures, last, max(left, 0)
}
