package moves

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/moves"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// tellAfter is how long the controller that has settled a move has to tell of it.
const tellAfter = 10 * time.Second

// tellBound is how long an event may take.
const tellBound = 10 * time.Second

// ends are the events of moves that are settled.
var ends = map[nodev1.Phase]string{
	nodev1.Phase_PHASE_SUCCEEDED: moves.Succeeded, nodev1.Phase_PHASE_FAILED: moves.Failed,
	nodev1.Phase_PHASE_ABORTED:      moves.Aborted,
	nodev1.Phase_PHASE_LOST_AT_DEST: moves.Lost, nodev1.Phase_PHASE_LOST_AT_SRC: moves.Lost,
}

// Tell writes the first and the last events that are missing, and those of the switch-over and the commit that come
// before a last one: of a controller that has died between a change of the records and its event, or whose store
// took none for too long. The cluster takes each of them once, whichever other controller tells it.
func (s *Service) Tell(ctx context.Context) error {
	all, err := s.Records.List(ctx, &nodev1.ListRequest{Moves: true, Cached: true})
	if err != nil {
		return err
	}
	begun, told, over, open := map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}
	var ids []string
	var since int64 // events of before may be forgotten
	for i, ev := range s.Cluster.Events(ctx, 0, 0) {
		if i == 0 && ev.GetId() > 1 {
			since = ev.GetUnixNano()
		}
		id := ev.GetOperation()
		if id != "" && !told[id] {
			ids = append(ids, id)
		}
		begun[id] = begun[id] || ev.GetType() == moves.Started
		told[id], over[id] = true, over[id] || moves.Settled(ev.GetType())
	}
	for _, rec := range all.GetRecords() {
		op := rec.GetOperation()
		open[op.GetId()] = true
		if op.GetKind() == nodev1.Kind_KIND_MIGRATE && !begun[op.GetId()] && op.GetOpenedUnixNano() >= since {
			if err := s.tell(ctx, op, moves.Started); err != nil {
				return err
			}
		}
	}
	for _, id := range ids {
		if over[id] || open[id] {
			continue
		}
		if err := s.tellEnd(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// tellEnd tells how an operation was settled, unless it was so only now: then its controller tells.
func (s *Service) tellEnd(ctx context.Context, id string) error {
	resp, err := s.Records.Operation(ctx, &nodev1.OperationRequest{Id: id})
	if errdefs.IsNotFound(err) { // forgotten with its VM
		return nil
	}
	if err != nil {
		return fmt.Errorf("tell the end of operation %s: %w", id, err)
	}
	op := resp.GetOperation()
	kind, closed := ends[op.GetPhase()], op.GetClosedUnixNano()
	if kind == "" || closed == 0 || time.Since(time.Unix(0, closed)) < tellAfter {
		return nil
	}
	return s.tell(ctx, op, kind)
}

func (s *Service) tell(ctx context.Context, op *nodev1.Operation, kind string) error {
	ctx, cancel := context.WithTimeout(ctx, tellBound) // the cluster asks its store until then
	defer cancel()
	ev := &nodev1.MoveEvent{
		Type: kind, Vm: op.GetVm(), Operation: op.GetId(), Reason: op.GetReason(),
		Attempt: op.GetAttempt(), Source: op.GetSource(), Destination: op.GetDestination(),
	}
	for _, ev := range append(before(ev, op), ev) {
		if err := s.Cluster.Append(ctx, ev); err != nil {
			return err
		}
	}
	return nil
}
