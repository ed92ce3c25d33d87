// Package model checks the hand-over protocol by search. It tries every interleaving of the
// steps of the controller, the source and the destinations. Messages come late, twice or never.
// At most one node reboots. There are three attempts, to two destinations. Explore answers what
// was reached and what broke. A test runs it for the protocol, and for each Mutation, which
// breaks one rule and must be caught.
//
// A record write and the VMM's action that belongs to it are one step here, and the owner is
// always a node: the crash tests of package engine cover the rest.
package model

// Mutation breaks one rule of the protocol.
type Mutation string

// The mutations. None is the protocol as it is.
const (
	None Mutation = ""
	// the destination resumes by itself; its OK can be lost
	NativeResume               Mutation = "ch-native"
	NoFreeze                   Mutation = "no-freeze"                     // the vote leaves the source able to resume
	CommitUnprepared           Mutation = "commit-without-source-vote"    // Ready is enough
	RunNotFenced               Mutation = "run-not-fenced-by-attempt"     // Run meets the Ready of another attempt
	CannotWithoutFence         Mutation = "cannot-without-fence"          // Cannot is answered before Fenced is durable
	DestroySourceBeforeRunning Mutation = "destroy-source-before-running" // Release is sent before Running is known
)

const (
	maxAttempts = 3
	maxReboots  = 1
)

// record of a node, phase of the controller, vmm of a node.
type (
	record uint8
	phase  uint8
	vmm    uint8
)

const (
	none record = iota
	own
	sending
	prepared
	released
	incoming
	ready
	fenced
)

const (
	idle      phase = iota
	preparing       // stands for Preparing, Transferring and Switching
	aborting
	committed
	reverting
	cleaning
	succeeded
	lostAtDest
	lostAtSrc
)

const (
	off vmm = iota
	run
	paused
	frozen
	dead
)

// node is a durable record and what its VMM does. number is a generation for own, an
// attempt for every other record.
type node struct {
	record record
	number uint8
	vmm    vmm
}

// kind of a request or a fact.
type kind uint8

const (
	prepareDestination kind = iota
	send
	vote
	runAt
	abortSource
	abortDestination
	resumeAfterRevert
	release
	isReady
	isPrepared
	sourceAborted
	destinationAborted
	running
	cannot
	lost
	sourceRunning
	sourceLost
	isReleased
	kinds
)

// message is a request or a fact. Once sent it stays, so that it may come at any time
// and any number of times. A request for an attempt may carry a generation.
type message struct {
	kind    kind
	number  uint8 // attempt; of running, sourceRunning and sourceLost: generation
	renewed uint8 // the new generation of runAt and resumeAfterRevert
}

// maxGeneration that three attempts, each with a revert, can come to.
const maxGeneration = 8

// set of messages, one bit for each.
type set [(int(kinds)*maxGeneration*maxGeneration + 63) / 64]uint64

func (m message) bit() (word int, mask uint64) {
	i := (int(m.kind)*maxGeneration+int(m.number))*maxGeneration + int(m.renewed)
	return i / 64, 1 << (i % 64)
}

func (s set) has(k kind, number uint8) bool {
	word, mask := message{kind: k, number: number}.bit()
	return s[word]&mask != 0
}

// with answers s and one more message.
func (s set) with(m message) set {
	word, mask := m.bit()
	s[word] |= mask
	return s
}

func (s set) add(k kind, number uint8) set { return s.with(message{kind: k, number: number}) }

// each calls do for the messages of the set.
func (s set) each(do func(message)) {
	for i := range int(kinds) * maxGeneration * maxGeneration {
		if s[i/64]&(1<<(i%64)) != 0 {
			do(message{kind: kind(i / maxGeneration / maxGeneration), number: uint8(i / maxGeneration % maxGeneration),
				renewed: uint8(i % maxGeneration)})
		}
	}
}

// State of everything. owner is 0 for the source, else the destination's number.
type State struct {
	phase    phase
	attempt  uint8
	owner    uint8
	gen      uint8
	source   node
	dests    [2]node
	requests set
	facts    set
	destRan  bool
	reboots  uint8
}

func initial() State {
	return State{gen: 1, source: node{own, 1, run}}
}

// dest is the index of an attempt's destination: A, B, A.
func dest(attempt uint8) int {
	if attempt == 2 {
		return 1
	}
	return 0
}

func (s State) withDest(i int, n node) State {
	s.dests[i] = n
	return s
}

func (s State) fact(k kind, number uint8) State {
	s.facts = s.facts.add(k, number)
	return s
}

func (s State) runners() int {
	count := 0
	for _, n := range []node{s.source, s.dests[0], s.dests[1]} {
		if n.vmm == run {
			count++
		}
	}
	return count
}

// broken names the invariants that do not hold.
func (s State) broken() (names []string) {
	if s.runners() > 1 {
		names = append(names, TwoRunners)
	}
	if s.destRan && s.source.vmm == run {
		names = append(names, SourceAfterDestination)
	}
	if s.reboots == 0 && !s.complete() {
		names = append(names, Lost)
	}
	return names
}

// Violations.
const (
	TwoRunners             = "two runners"                  // I1
	SourceAfterDestination = "source ran after destination" // I2
	Lost                   = "lost without node failure"    // I3
)

func (s State) complete() bool {
	if s.source.vmm == run || s.source.vmm == paused || s.source.vmm == frozen {
		return true
	}
	for _, d := range s.dests {
		if (d.record == ready || d.record == own) && (d.vmm == paused || d.vmm == run) {
			return true
		}
	}
	return false
}

// settled: one runner at rest or, after a reboot, an honest last word.
func (s State) settled() bool {
	if (s.phase == succeeded || s.phase == idle) && s.runners() == 1 {
		return true
	}
	return s.reboots > 0 && (s.phase == lostAtDest || s.phase == lostAtSrc || s.phase == succeeded || s.phase == idle)
}
