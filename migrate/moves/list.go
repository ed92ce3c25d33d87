package moves

import (
	"context"
	"slices"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/migrate/controller"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// List implements nodev1.MovesService. Closed moves are those that the events tell of. Who asks for no
// parts, as clients of builds before, gets what one message takes: the oldest are left away.
func (s *Service) List(ctx context.Context, req *nodev1.MovesRequest) (*nodev1.MovesResponse, error) {
	ids, err := s.ids(ctx, req)
	if err != nil {
		return nil, err
	}
	if req.GetParts() {
		return s.part(ctx, req, ids)
	}
	resp, size := &nodev1.MovesResponse{}, 0
	for i, id := range slices.Backward(ids) {
		status, err := s.status(ctx, req, id)
		if err != nil {
			return nil, err
		}
		if status == nil {
			continue
		}
		if size += proto.Size(status) + overhead; size > controller.MaxAnswer {
			resp.Omitted = uint32(i + 1)
			break
		}
		resp.Moves = append(resp.Moves, status)
	}
	slices.Reverse(resp.Moves)
	return resp, nil
}

// overhead is more than what a message in a list of another one costs in addition to its own bytes.
const overhead = 16

// part answers those that come after one, by id.
func (s *Service) part(ctx context.Context, req *nodev1.MovesRequest, ids []string) (*nodev1.MovesResponse, error) {
	slices.Sort(ids)
	first, _ := slices.BinarySearch(ids, req.GetAfter())
	resp, size, last := &nodev1.MovesResponse{}, 0, ""
	for _, id := range ids[first:] {
		if id <= req.GetAfter() {
			continue
		}
		status, err := s.status(ctx, req, id)
		if err != nil {
			return nil, err
		}
		if size += proto.Size(status); size > controller.PartSize && last != "" {
			resp.Next = last
			break
		}
		if last = id; status != nil {
			resp.Moves = append(resp.Moves, status)
		}
	}
	return resp, nil
}

// ids of the moves that the records and, if they are asked for, the events tell of: closed ones first, the
// oldest first.
func (s *Service) ids(ctx context.Context, req *nodev1.MovesRequest) (ids []string, err error) {
	all, err := s.Records.List(ctx, &nodev1.ListRequest{Moves: true})
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{"": true} // an event of a node has none
	add := func(id string) {
		if !seen[id] {
			seen[id] = true
			ids = append(ids, id)
		}
	}
	if req.GetClosed() {
		for _, ev := range s.Cluster.Events(ctx, 0, 0) {
			add(ev.GetOperation())
		}
	}
	for _, rec := range all.GetRecords() {
		if op := rec.GetOperation(); op.GetKind() == nodev1.Kind_KIND_MIGRATE {
			add(op.GetId())
		}
	}
	return ids, nil
}

// status of a move; nil: it is none that was asked for.
func (s *Service) status(ctx context.Context, req *nodev1.MovesRequest, id string) (*nodev1.StatusResponse, error) {
	status, err := s.Engine.Status(ctx, id)
	if errdefs.IsNotFound(err) || status.GetOperation().GetKind() == nodev1.Kind_KIND_WAKE {
		return nil, nil // forgotten with its VM; or not begun when its event was told, and no move
	}
	if err != nil || req.GetVm() != nil && key(req.GetVm()) != key(status.GetOperation().GetVm()) {
		return nil, err
	}
	return status, nil
}
