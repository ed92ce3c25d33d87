package engine

import (
	"context"
	"log/slog"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Type of an Event.
type Type string

// Types of events. Log says which are warnings.
const (
	Opened         Type = "Opened"
	Committed      Type = "Committed"
	Succeeded      Type = "Succeeded"
	Retrying       Type = "Retrying"
	Aborting       Type = "Aborting"
	Aborted        Type = "Aborted"
	Failed         Type = "Failed"
	Lost           Type = "Lost"
	CleanupPending Type = "CleanupPending"
	OwnershipEnded Type = "Disowned"
	Superseded     Type = "Outlived"      // a VM that was somebody else's by its record is ended here
	Reclaimed      Type = "TakenBack"     // a VM that a move has lost goes on at its source
	Switching      Type = "Switching"     // a move: its source is about to stop for good
	DeletionWaits  Type = "DeletionWaits" // a final snapshot has failed, and is tried again
	DeletionFails  Type = "DeletionFails" // a final snapshot has failed for good: the VM stays
	DeletionOff    Type = "DeletionOff"   // it was called off
	// what was to be deleted is of another VM: it stays, and its deletion is not pending any more
	Foreign    Type = "Foreign"
	Retargeted Type = "Retargeted" // a move: its next attempt begins
)

var settled = map[nodev1.Phase]Type{
	nodev1.Phase_PHASE_SUCCEEDED:    Succeeded,
	nodev1.Phase_PHASE_FAILED:       Failed,
	nodev1.Phase_PHASE_ABORTED:      Aborted,
	nodev1.Phase_PHASE_LOST_AT_DEST: Lost,
	nodev1.Phase_PHASE_LOST_AT_SRC:  Lost,
}

// Event is something that people and counters want to know.
type Event struct {
	Type      Type
	Operation string
	VM        *nodev1.VM
	Kind      nodev1.Kind
	Reason    string
	Receipt   string // of a settled operation, JSON
	Err       error
	Op        *nodev1.Operation // of a move, as it was before
}

// tell reports something of a move.
func (c *core) tell(ctx context.Context, kind Type, op *nodev1.Operation, err error) {
	c.Events.Event(ctx, Event{Type: kind, Operation: op.GetId(), VM: op.GetVm(), Kind: op.GetKind(), Op: op, Err: err})
}

// Events takes what the engine reports. It must not block.
type Events interface {
	Event(ctx context.Context, ev Event)
}

// Sinks hands every event to each of several.
type Sinks []Events

// Event implements Events.
func (s Sinks) Event(ctx context.Context, ev Event) {
	for _, sink := range s {
		sink.Event(ctx, ev)
	}
}

// Log writes events to a logger.
type Log struct{ Logger *slog.Logger }

// Event implements Events.
func (l Log) Event(ctx context.Context, ev Event) {
	level := slog.LevelWarn
	if ev.Type == Opened || ev.Type == Committed || ev.Type == Succeeded || ev.Type == Switching ||
		ev.Type == Retargeted || ev.Type == DeletionOff {
		level = slog.LevelInfo
	}
	attrs := []slog.Attr{
		slog.String("event", string(ev.Type)), slog.String("kind", ev.Kind.String()),
		slog.String("vm", ev.VM.GetNamespace()+"/"+ev.VM.GetId()), slog.String("operation", ev.Operation),
	}
	if ev.Reason != "" {
		attrs = append(attrs, slog.String("reason", ev.Reason))
	}
	if ev.Receipt != "" {
		attrs = append(attrs, slog.String("receipt", ev.Receipt))
	}
	if ev.Err != nil {
		attrs = append(attrs, slog.Any("error", ev.Err))
	}
	l.Logger.LogAttrs(ctx, level, "operation", attrs...)
}
