package journal

import "time"

// Phase of the journal is what this node may do with the VM, after a crash too.
type Phase string

// Phases. The first four are a source's, the others a destination's. A source's VM may run in
// SENDING, up to its last pass; in READY a destination's RAM may still have to come: Postcopy.
const (
	Own      Phase = "OWN"
	Sending  Phase = "SENDING"  // a snapshot is being made, or the VM sent
	Prepared Phase = "PREPARED" // voted; the VMM is stopped
	Released Phase = "RELEASED"
	Incoming Phase = "INCOMING" // a snapshot, or what a source sends, is being filled in
	Ready    Phase = "READY"    // has all that it needs, and has not executed an instruction
	Fenced   Phase = "FENCED"   // given up; this attempt never runs here
)

// Open reports whether an operation holds the VM, so that only its controller may end it.
func (p Phase) Open() bool {
	return p == Sending || p == Prepared || p == Incoming || p == Ready
}

// Destination reports whether j is that of a VM that came from a snapshot and has not
// run, or never will.
func (p Phase) Destination() bool { return p == Incoming || p == Ready || p == Fenced }

// BeginSending says that an operation holds the VM, and has nothing of it yet. A VM without a record has
// generation 0 until then, and runs under the operation's from here on. patience is how long
// the VM stands still for a controller that says nothing.
func (j *Journal) BeginSending(operation string, attempt uint32, generation uint64, patience time.Duration) {
	if j.Generation == 0 {
		j.Generation = generation
	}
	j.Phase, j.Operation, j.Attempt, j.Digest, j.Repository, j.Move, j.Waking = Sending, operation, attempt, "", "",
		false, false
	j.Patience = patience.Milliseconds()
	j.Armed = false // the first reader of the kernel's notes uses them up
}

// Prepare says that the VM is prepared for the operation's commit: it has voted.
func (j *Journal) Prepare() { j.Phase = Prepared }

// EndOperation says that the VM is this node's and that no operation holds it.
func (j *Journal) EndOperation() {
	j.Phase, j.Operation, j.Attempt, j.Digest, j.Repository, j.Move, j.Waking = Own, "", 0, "", "", false, false
	j.Patience = 0
}
