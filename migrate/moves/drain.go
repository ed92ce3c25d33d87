package moves

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/moves"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/engine"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Drain implements nodev1.MovesService. All moves are ordered at once; the queue lets a
// few of them go at a time.
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
	all, err := s.Records.List(ctx, &nodev1.ListRequest{})
	if err != nil {
		return nil, err
	}
	resp := &nodev1.DrainResponse{}
	for _, rec := range all.GetRecords() {
		if rec.GetOwner().GetNode() != req.GetNode() {
			continue
		}
		status, err := s.Engine.Migrate(ctx, &nodev1.MigrateRequest{Vm: rec.GetVm(), To: req.GetTo(), Mode: req.GetMode()})
		var held *record.HeldError
		if errors.As(err, &held) && held.Record.GetOperation().GetKind() == nodev1.Kind_KIND_MIGRATE {
			status, err = s.Engine.Status(ctx, held.Record.GetOperation().GetId()) // it leaves already
		}
		if err != nil {
			resp.Refused = append(resp.Refused, key(rec.GetVm())+": "+record.Plain(err).Error())
			continue
		}
		resp.Moves = append(resp.Moves, status)
	}
	return resp, nil
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
	n, err := s.Board.Node(to)
	if err == nil {
		err = engine.Takes(n)
	}
	if err != nil {
		return fmt.Errorf("to: %w", err)
	}
	return nil
}
