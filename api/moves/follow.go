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

	// The last event that was heard, and the time up to which events were heard before.
	after     uint64
	at, since int64
	known     bool // the operation was seen
	settled   bool
}

// Follow is Client.Follow.
func (f *Follower) Follow(ctx context.Context, req *nodev1.WatchRequest) error {
	only := ""
	if req.GetUntilSettled() {
		only = req.GetOperation()
	}
	f.after, f.at, f.since = req.GetAfter(), f.At, 0
	if f.after == 0 {
		f.at, f.since = 0, f.Since
	}
	for {
		var resp *nodev1.EventsResponse
		err := f.Ask(ctx, func(ctx context.Context) (err error) {
			resp, err = f.From.Events(ctx, &nodev1.EventsRequest{After: f.after, AfterUnixNano: f.at,
				WaitMs: pollWait.Milliseconds()})
			return err
		})
		switch {
		case err != nil:
			return err
		case resp.GetAnew():
			f.begin()
			continue
		case len(resp.GetEvents()) == 0 && f.settled:
			return nil // the controller that was to write its last event has died: the next one will
		case len(resp.GetEvents()) == 0 && only != "":
			if err := f.look(ctx, only); err != nil {
				return err
			}
		}
		for _, ev := range resp.GetEvents() {
			if !f.isNew(ev) || req.GetOperation() != "" && req.GetOperation() != ev.GetOperation() {
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

// begin begins with the first event again, of a store that was put back.
func (f *Follower) begin() {
	f.since, f.after, f.at = max(f.since, f.at), 0, 0
	if f.Anew != nil {
		f.Anew()
	}
}

// isNew reports whether an event was not heard before, and notes it.
func (f *Follower) isNew(ev *nodev1.MoveEvent) bool {
	if ev.GetId() <= f.after {
		return false
	}
	if f.after > 0 && ev.GetId() > f.after+1 && f.Gap != nil {
		f.Gap(f.after+1, ev.GetId()-1)
	}
	f.after, f.at = ev.GetId(), ev.GetUnixNano()
	if f.since > 0 && f.at <= f.since {
		return false
	}
	f.since = 0
	return true
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
