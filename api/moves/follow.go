package moves

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// pollWait is how long one question for events waits: less than a call may take.
const pollWait = 5 * time.Second

// Source answers for events and operations.
type Source interface {
	Events(ctx context.Context, req *nodev1.EventsRequest) (*nodev1.EventsResponse, error)
	Get(ctx context.Context, req *nodev1.StatusRequest) (*nodev1.StatusResponse, error)
}

// Follow is Client.Follow on any source of events.
func Follow(ctx context.Context, from Source, req *nodev1.WatchRequest, do func(*nodev1.MoveEvent) error) error {
	return (&Follower{From: from, Do: do}).Follow(ctx, req)
}

// Follower hears the events of moves from a source that may be stopped and started again: each once,
// in order, from the last one that it has heard on.
type Follower struct {
	From Source
	Do   func(*nodev1.MoveEvent) error
	// Gap hears of events, from the first to the last, that are no longer to be had: the controller
	// keeps the newest ones. nil: gaps are not told.
	Gap func(first, last uint64)
	// Anew hears that the controller counts its events anew: its store was put back from a copy. Events of no later time
	// than the last one that was heard are not told again. nil: that is not told.
	Anew func()
	// At is the time of the event after which Follow begins; below 0: not known. Without such an event, events of no
	// later time than Since are not told.
	At, Since int64
	Patience

	known   bool // the operation was seen
	settled bool
}

// Follow is Client.Follow.
func (f *Follower) Follow(ctx context.Context, req *nodev1.WatchRequest) error {
	only := ""
	if req.GetUntilSettled() {
		only = req.GetOperation()
	}
	after, at, since := req.GetAfter(), f.At, int64(0)
	if after == 0 {
		at, since = 0, f.Since
	}
	for {
		var resp *nodev1.EventsResponse
		err := f.Ask(ctx, func(ctx context.Context) (err error) {
			resp, err = f.From.Events(ctx, &nodev1.EventsRequest{After: after, AfterUnixNano: at,
				WaitMs: pollWait.Milliseconds()})
			return err
		})
		switch {
		case err != nil:
			return err
		case resp.GetAnew():
			since, after, at = max(since, at), 0, 0
			if f.Anew != nil {
				f.Anew()
			}
			continue
		case len(resp.GetEvents()) == 0 && f.settled:
			return nil // the controller that was to write its last event has died: the next one will
		case len(resp.GetEvents()) == 0 && only != "":
			if err := f.look(ctx, only); err != nil {
				return err
			}
		}
		for _, ev := range resp.GetEvents() {
			if ev.GetId() <= after {
				continue
			}
			if after > 0 && ev.GetId() > after+1 && f.Gap != nil {
				f.Gap(after+1, ev.GetId()-1)
			}
			after, at = ev.GetId(), ev.GetUnixNano()
			if since > 0 && at <= since {
				continue
			}
			since = 0
			if req.GetOperation() != "" && req.GetOperation() != ev.GetOperation() {
				continue
			}
			if err := f.Do(ev); err != nil {
				return err
			}
			if only != "" && Settled(ev.GetType()) {
				return nil
			}
		}
	}
}

// look finds out whether the operation is settled. An operation that is not known may still be
// ordered. One that was known is forgotten, and so are its events in time.
func (f *Follower) look(ctx context.Context, operation string) error {
	var status *nodev1.StatusResponse
	err := f.Ask(ctx, func(ctx context.Context) (err error) {
		status, err = f.From.Get(ctx, &nodev1.StatusRequest{Operation: operation})
		return err
	})
	if errdefs.IsNotFound(err) && !f.known {
		return nil
	}
	if err != nil {
		return fmt.Errorf("follow operation %s: %w", operation, err)
	}
	f.known, f.settled = true, status.GetSettled()
	return nil
}
