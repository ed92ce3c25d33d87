package decide

import (
	"fmt"
	"time"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// releaseBound is how long a node may take to end what it has of a VM that it has no more, before that is shown.
const releaseBound = time.Minute

// unreleased is what to show of an operation that is committed, and whose source has not said that the VM has ended
// there; empty: nothing yet. left is when it is to be looked at again; 0: at no time.
func unreleased(op *nodev1.Operation, now time.Time) (message string, left time.Duration) {
	committed := op.GetCommittedUnixNano()
	if op.GetPhase() != nodev1.Phase_PHASE_COMMITTED && op.GetPhase() != nodev1.Phase_PHASE_CLEANING ||
		op.GetSource() == "" || committed == 0 {
		return "", 0
	}
	at := time.Unix(0, committed)
	if left := releaseBound - now.Sub(at); left > 0 {
		return "", left
	}
	return fmt.Sprintf("node %s has the VM no more since %s, and has not said that it has ended there", op.GetSource(),
		at.UTC().Format(time.RFC3339)), 0
}
