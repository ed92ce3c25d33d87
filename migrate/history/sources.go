package history

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/moves"
	"godwit.dev/godwit/migrate/engine"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

var _ engine.Events = (*History)(nil)

// Event implements engine.Events: the operations of this node, and what the engine does of itself.
func (h *History) Event(_ context.Context, ev engine.Event) {
	out := &nodev1.NodeEvent{
		Type: TypeOperation, Event: operations[ev.Kind], Phase: phases[ev.Type], Vm: ev.VM, Operation: ev.Operation,
		Attempt: ev.Op.GetAttempt(), Source: ev.Op.GetSource(), Destination: ev.Op.GetDestination(),
		Digest: ev.Op.GetDigest(), Reason: ev.Reason,
	}
	if out.Reason == "" && ev.Err != nil {
		out.Reason = ev.Err.Error()
	}
	switch word := alone[ev.Type]; {
	case word != "":
		out.Type, out.Event, out.Phase, out.Operation = TypeVM, word, "", ""
	case out.Event == "" || out.Phase == "":
		return
	}
	h.Add(out)
}

// Records answers what became of an operation.
type Records interface {
	Operation(ctx context.Context, req *nodev1.OperationRequest) (*nodev1.OperationResponse, error)
}

// settleAfter is how long the engine that has settled an operation has to tell of it.
const settleAfter = 10 * time.Second

// Settle tells the ends of operations that were not told: godwitd was ended between the change of the record and its
// event.
func (h *History) Settle(ctx context.Context, records Records) error {
	for _, ev := range h.open() {
		resp, err := records.Operation(ctx, &nodev1.OperationRequest{Id: ev.GetOperation()})
		op := resp.GetOperation()
		switch phase := closed[op.GetPhase()]; {
		case errdefs.IsNotFound(err): // no proof of anything
			h.Add(like(ev, &nodev1.NodeEvent{Phase: Unknown, Reason: "the records do not know it any more: its VM was " +
				"removed, or they were put back from a copy"}))
		case err != nil:
			return fmt.Errorf("ask what became of operation %s: %w", ev.GetOperation(), err)
		case phase != "" && time.Since(time.Unix(0, op.GetClosedUnixNano())) > settleAfter:
			h.Add(like(ev, &nodev1.NodeEvent{Phase: phase, UnixNano: op.GetClosedUnixNano(), Reason: op.GetReason(),
				Digest: op.GetDigest(), Attempt: op.GetAttempt()}))
		}
	}
	return nil
}

func like(begun, ev *nodev1.NodeEvent) *nodev1.NodeEvent {
	ev.Type, ev.Event, ev.Vm, ev.Operation = begun.GetType(), begun.GetEvent(), begun.GetVm(), begun.GetOperation()
	ev.Source, ev.Destination = begun.GetSource(), begun.GetDestination()
	return ev
}

// open are the operations of this node that have begun and not ended, by their first event.
func (h *History) open() (all []*nodev1.NodeEvent) {
	h.mu.Lock()
	defer h.mu.Unlock()
	over := map[string]bool{}
	for _, ev := range h.all {
		over[ev.GetOperation()] = over[ev.GetOperation()] || ended(ev.GetPhase()) ||
			ev.GetPhase() == Unknown
	}
	for _, ev := range h.all {
		if ev.GetType() == TypeOperation && ev.GetPhase() == Begun && !over[ev.GetOperation()] {
			all = append(all, ev)
		}
	}
	return all
}

// FollowMoves hears of the moves from and to this node, from the last one on that was heard of, until ctx ends. What
// is older than a history that begins is left out.
func (h *History) FollowMoves(ctx context.Context, from moves.Source) {
	f := &moves.Follower{From: from, Patience: moves.Patience{Met: true}, Since: time.Now().UnixNano()}
	last := h.Last(func(ev *nodev1.NodeEvent) bool { return ev.GetMoveEvent() > 0 })
	if f.At = last.GetUnixNano(); last.GetType() == TypeNode {
		f.At = -1 // it is the time of a gap
	}
	gap := func(last uint64, reason string) {
		h.Add(&nodev1.NodeEvent{Type: TypeNode, Event: Gap, MoveEvent: last, Reason: reason})
	}
	f.Gap = func(first, last uint64) {
		gap(last, fmt.Sprintf("%d events of moves are not kept any more", last-first+1))
	}
	f.Anew = func() { gap(0, "the records were put back from a copy: events of moves may be missing") }
	f.Do = func(ev *nodev1.MoveEvent) error {
		h.moved(ev)
		return nil
	}
	if err := f.Follow(ctx, &nodev1.WatchRequest{After: last.GetMoveEvent()}); err != nil && ctx.Err() == nil {
		slog.WarnContext(ctx, "events of moves are heard no more", "error", err)
		h.Add(&nodev1.NodeEvent{Type: TypeNode, Event: Gap, Reason: "the controller's events of moves cannot be read: " +
			err.Error()})
	}
}

// moved tells of a move of this node.
func (h *History) moved(ev *nodev1.MoveEvent) {
	phase := movePhases[ev.GetType()]
	if phase == "" || ev.GetSource() != h.node && ev.GetDestination() != h.node {
		return
	}
	h.Add(&nodev1.NodeEvent{
		Type: TypeMove, Event: Move, Phase: phase, UnixNano: ev.GetUnixNano(), Vm: ev.GetVm(),
		Operation: ev.GetOperation(), Attempt: ev.GetAttempt(), Source: ev.GetSource(),
		Destination: ev.GetDestination(), Reason: ev.GetReason(), MoveEvent: ev.GetId(),
	})
}
