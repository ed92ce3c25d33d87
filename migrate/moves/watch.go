package moves

import (
	"context"
	"time"

	"godwit.dev/godwit/migrate/controller"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// maxWait bounds one question for events.
const maxWait = 8 * time.Second

// Events implements nodev1.MovesService. Who gets a part of them asks for the rest.
func (s *Service) Events(ctx context.Context, req *nodev1.EventsRequest) (*nodev1.EventsResponse, error) {
	if s.anew(ctx, req) {
		return &nodev1.EventsResponse{Anew: true}, nil
	}
	wait := min(time.Duration(req.GetWaitMs())*time.Millisecond, maxWait)
	all := s.Cluster.Events(ctx, req.GetAfter(), wait)
	return &nodev1.EventsResponse{Events: all[:controller.Part(all)]}, nil
}

// anew reports whether the event that was heard last is none of these: the store was put back from a copy, and gives
// its numbers a second time. An event that is not kept any more is older than those that are.
func (s *Service) anew(ctx context.Context, req *nodev1.EventsRequest) bool {
	after, at := req.GetAfter(), req.GetAfterUnixNano()
	if after == 0 || at == 0 {
		return false
	}
	all := s.Cluster.Events(ctx, after-1, 0)
	switch {
	case len(all) == 0:
		return true
	case at < 0:
		return false
	case all[0].GetId() == after:
		return all[0].GetUnixNano() != at
	}
	return all[0].GetUnixNano() < at
}
