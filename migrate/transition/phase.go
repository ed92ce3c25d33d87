package transition

import (
	"slices"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Phases of an operation. Commit alone leads from the left half to the right one, and
// from Aborting and Reverting there is no way back to it:
//
//	Pending > Preparing > Transferring > Switching > Committed > Cleaning > Succeeded
//	       \______\____________\_____________\            \    \> LostAtDest
//	                                          Aborting     Reverting > Failed, LostAtSrc
//	                                          > Failed, Aborted
const (
	pending      = nodev1.Phase_PHASE_PENDING
	preparing    = nodev1.Phase_PHASE_PREPARING
	transferring = nodev1.Phase_PHASE_TRANSFERRING
	switching    = nodev1.Phase_PHASE_SWITCHING
	committed    = nodev1.Phase_PHASE_COMMITTED
	cleaning     = nodev1.Phase_PHASE_CLEANING
	succeeded    = nodev1.Phase_PHASE_SUCCEEDED
	aborting     = nodev1.Phase_PHASE_ABORTING
	reverting    = nodev1.Phase_PHASE_REVERTING
	failed       = nodev1.Phase_PHASE_FAILED
	aborted      = nodev1.Phase_PHASE_ABORTED
	lostAtDest   = nodev1.Phase_PHASE_LOST_AT_DEST
	lostAtSrc    = nodev1.Phase_PHASE_LOST_AT_SRC
)

// advances is what Advance may do, settles what Finish may.
var (
	advances = map[nodev1.Phase][]nodev1.Phase{
		pending:      {preparing, transferring, switching, aborting},
		preparing:    {transferring, switching, aborting},
		transferring: {switching, aborting},
		switching:    {aborting},
		committed:    {cleaning, reverting},
	}
	settles = map[nodev1.Phase][]nodev1.Phase{
		committed: {succeeded, lostAtDest},
		cleaning:  {succeeded},
		aborting:  {failed, aborted},
		reverting: {failed, lostAtSrc},
	}
	commits = []nodev1.Phase{transferring, switching}
)

func may(table map[nodev1.Phase][]nodev1.Phase, op *nodev1.Operation, to nodev1.Phase) bool {
	return slices.Contains(table[op.GetPhase()], to) && !never(op.GetKind(), op.GetPhase(), to)
}

// never is what the tables allow and a kind does not: a digest cannot fail to run, and a
// hibernate has succeeded only once its source is released. A checkpoint moves nothing.
func never(kind nodev1.Kind, from, to nodev1.Phase) bool {
	return captures(kind) && (to == reverting || to == lostAtDest || from == committed && to == succeeded)
}

// Committed reports whether the operation's new owner stands.
func Committed(phase nodev1.Phase) bool {
	return slices.Contains([]nodev1.Phase{committed, cleaning, succeeded, lostAtDest}, phase)
}

// Settled reports whether nothing is left to do.
func Settled(phase nodev1.Phase) bool {
	return slices.Contains([]nodev1.Phase{succeeded, failed, aborted, lostAtDest, lostAtSrc}, phase)
}
