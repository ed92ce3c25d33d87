package moves

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/api/moves"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/internal/visible"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/engine"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// maxRefusal bounds the text of why one VM is not sent away, in bytes.
const maxRefusal = 1024

// Drain implements nodev1.MovesService. All moves are ordered at once; the queue lets a
// few of them go at a time. What is on its way to the node, or busy there, is answered too: who
// drains follows it, and orders once more.
func (s *Service) Drain(ctx context.Context, req *nodev1.DrainRequest) (*nodev1.DrainResponse, error) {
	if err := authorize(ctx, "drain node "+req.GetNode(), req.GetNode()); err != nil {
		return nil, err
	}
	if err := s.drainable(req); err != nil {
		return nil, fmt.Errorf("drain node %s: %w", req.GetNode(), err) // and the node is not cordoned
	}
	if _, err := s.Cordon(ctx, &nodev1.CordonRequest{Node: req.GetNode()}); err != nil {
		return nil, err
	}
	ctx = controller.WithoutPeer(ctx)
	all, err := s.Records.List(ctx, &nodev1.ListRequest{Node: req.GetNode(), Moves: true})
	if err != nil {
		return nil, err
	}
	resp, size := &nodev1.DrainResponse{}, 0
	for _, vm := range all.GetUnread() {
		resp.Refused = append(resp.Refused, visible.Cut(vm+": its record cannot be read, so it may be on any node",
			maxRefusal))
		size += maxRefusal
	}
	for _, rec := range all.GetRecords() {
		if size > controller.MaxAnswer/2 { // the next order sends the others away
			break
		}
		var status *nodev1.StatusResponse
		switch {
		case coming(rec, req.GetNode()):
			status, err = s.turnAway(ctx, rec, req.GetNode())
		case rec.GetOwner().GetNode() == req.GetNode():
			status, err = s.sendAway(ctx, rec, req)
		default:
			continue
		}
		if err != nil {
			resp.Refused = append(resp.Refused, visible.Cut(key(rec.GetVm())+": "+record.Plain(err).Error(), maxRefusal))
			size += maxRefusal
			continue
		}
		resp.Moves = append(resp.Moves, status)
		size += proto.Size(status) + overhead
	}
	return resp, nil
}

// coming reports whether a VM is on its way to a node that does not own it yet, by a wake or a
// move. One that is undone and goes nowhere else stays where it is.
func coming(rec *nodev1.Record, node string) bool {
	op := rec.GetOperation()
	switch op.GetKind() {
	case nodev1.Kind_KIND_WAKE:
		return op.GetDestination() == node && rec.GetOwner().GetNode() != node
	case nodev1.Kind_KIND_MIGRATE:
		undone := op.GetPhase() == nodev1.Phase_PHASE_ABORTING || op.GetPhase() == nodev1.Phase_PHASE_REVERTING
		return op.GetRetarget() == node || op.GetDestination() == node && !undone && rec.GetOwner().GetNode() != node
	}
	return false
}

// turnAway calls a move to the node off. A wake goes on, as does a move that is committed by now:
// their VMs are sent away when they are there.
func (s *Service) turnAway(ctx context.Context, rec *nodev1.Record, node string) (*nodev1.StatusResponse, error) {
	op := rec.GetOperation()
	if op.GetKind() == nodev1.Kind_KIND_MIGRATE {
		status, err := s.Engine.Cancel(ctx, op.GetId(), "node "+node+", where it went, is drained")
		if !errdefs.IsFailedPrecondition(err) && !errdefs.IsAborted(err) {
			return status, err
		}
	}
	return s.Engine.Status(ctx, op.GetId())
}

// sendAway orders a VM to another node. An operation that holds it comes first: it leaves
// already, has just come, or is taken a snapshot of.
func (s *Service) sendAway(ctx context.Context, rec *nodev1.Record, req *nodev1.DrainRequest) (*nodev1.StatusResponse,
	error) {
	status, err := s.Engine.Migrate(ctx, &nodev1.MigrateRequest{Vm: rec.GetVm(), To: req.GetTo(), Mode: req.GetMode()})
	var held *record.HeldError
	if errors.As(err, &held) && held.Record.GetOperation() != nil {
		return s.Engine.Status(ctx, held.Record.GetOperation().GetId())
	}
	return status, err
}

// drainable refuses an order that each of its moves would be refused for.
func (s *Service) drainable(req *nodev1.DrainRequest) error {
	if err := moves.CheckMode(req.GetMode()); err != nil {
		return err
	}
	to := req.GetTo()
	if to == "" {
		return nil
	}
	if to == req.GetNode() {
		return fmt.Errorf("to: node %s is the one that is drained; name another: %w", to, errdefs.ErrInvalidArgument)
	}
	n, err := s.Cluster.Node(to)
	if err == nil {
		err = engine.Takes(n)
	}
	if err != nil {
		return fmt.Errorf("to: %w", err)
	}
	return nil
}
