package moves

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// told is a controller whose journal lacks the last event of an operation, which was settled
// at that time.
type told struct {
	events []*nodev1.MoveEvent
	over   time.Time
}

func (c *told) Events(ctx context.Context, req *nodev1.EventsRequest) (*nodev1.EventsResponse, error) {
	resp := &nodev1.EventsResponse{}
	for _, ev := range c.events {
		if ev.GetId() > req.GetAfter() {
			resp.Events = append(resp.Events, ev)
		}
	}
	if len(resp.Events) == 0 {
		select {
		case <-time.After(time.Duration(req.GetWaitMs()) * time.Millisecond):
		case <-ctx.Done():
		}
	}
	return resp, nil
}

func (c *told) Get(context.Context, *nodev1.StatusRequest) (*nodev1.StatusResponse, error) {
	return &nodev1.StatusResponse{Settled: time.Now().After(c.over)}, nil
}

// A client that follows an operation until it is settled does not wait for an event that a crash
// of the controller has swallowed. A client that follows all operations goes on.
func TestFollowWithoutTheLastEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &told{over: time.Now().Add(time.Minute), events: []*nodev1.MoveEvent{{Id: 1, Operation: "m", Type: Started}}}
		for name, want := range map[string]struct {
			req  *nodev1.WatchRequest
			ends bool
		}{
			"one":                {&nodev1.WatchRequest{Operation: "m", UntilSettled: true}, true},
			"one, and beyond it": {&nodev1.WatchRequest{Operation: "m"}, false},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			heard := 0
			err := Follow(ctx, c, want.req, func(*nodev1.MoveEvent) error {
				heard++
				return nil
			})
			if heard != 1 || (err == nil) != want.ends || want.ends && time.Now().Before(c.over) {
				t.Errorf("%s: heard %d events, %v", name, heard, err)
			}
			cancel()
			c.over = time.Now().Add(time.Minute)
		}
	})
}
