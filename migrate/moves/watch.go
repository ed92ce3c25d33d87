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
	wait := min(time.Duration(req.GetWaitMs())*time.Millisecond, maxWait)
	all := s.Cluster.Events(ctx, req.GetAfter(), wait)
	return &nodev1.EventsResponse{Events: all[:controller.Part(all)]}, nil
}
