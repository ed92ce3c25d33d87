package history

import (
	"slices"

	"godwit.dev/godwit/api/moves"
	"godwit.dev/godwit/migrate/engine"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Types of events.
const (
	TypeVM        = "vm"        // containerd's
	TypeOperation = "operation" // of this node: hibernate, wake, checkpoint
	TypeMove      = "move"      // of which this node is the source or the destination
	TypeNode      = "node"      // of the history itself
)

// Events that this package and its sources name. docs/reference/cli.md has all of them.
const (
	Create = "create"
	Start  = "start"
	Exit   = "exit"
	Kill   = "kill"
	Delete = "delete"
	Rename = "rename"
	Move   = "move"
	Stop   = "daemon-stop"
	Gap    = "gap" // something may have happened that was not heard
)

// Late is the reason of an event that was found out after a time in which nothing was heard.
const Late = "seen later: it was not heard when it happened"

// Phases of operations and moves.
const (
	Begun     = "begun"
	Committed = "committed"
	Retrying  = "retrying"
	Done      = "done"
	Failed    = "failed"
	Aborted   = "aborted"
	Lost      = "lost"
	Unknown   = "unknown" // the records do not say how it has ended
)

func ended(phase string) bool { return slices.Contains([]string{Done, Failed, Aborted, Lost}, phase) }

var phases = map[engine.Type]string{
	engine.Opened: Begun, engine.Committed: Committed, engine.Succeeded: Done, engine.Retrying: Retrying,
	engine.Aborting: "aborting", engine.Aborted: Aborted, engine.Failed: Failed, engine.Lost: Lost,
}

var movePhases = map[string]string{
	moves.Started: Begun, moves.Switching: "switching", moves.Committed: Committed, moves.Succeeded: Done,
	moves.Aborting: "aborting", moves.Aborted: Aborted, moves.Failed: Failed, moves.Lost: Lost,
	moves.Retrying: Retrying, moves.Retargeted: "retargeted",
}

var closed = map[nodev1.Phase]string{
	nodev1.Phase_PHASE_SUCCEEDED: Done, nodev1.Phase_PHASE_FAILED: Failed, nodev1.Phase_PHASE_ABORTED: Aborted,
	nodev1.Phase_PHASE_LOST_AT_DEST: Lost, nodev1.Phase_PHASE_LOST_AT_SRC: Lost,
}

// operations of this node, as verbs call them. Moves are heard of from the controller.
var operations = map[nodev1.Kind]string{
	nodev1.Kind_KIND_HIBERNATE: "hibernate", nodev1.Kind_KIND_WAKE: "wake", nodev1.Kind_KIND_CHECKPOINT: "checkpoint",
}

// alone are what the engine tells of VMs, without an operation.
var alone = map[engine.Type]string{
	engine.OwnershipEnded: "lost", engine.Superseded: "superseded", engine.Reclaimed: "recovered",
}
