package client

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/moves"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// EventOptions of Events.
type EventOptions struct {
	Since time.Time         // of the first event that is told; zero: now, or the oldest one if Until has passed
	Until time.Time         // of the last one; zero: there is no last one
	Gap   func(text string) // hears that events are missing at this place; nil: that is not told
	Waits func(cause error) // hears that godwitd is away, and is waited for; may be nil
}

// eventsWait is how long one question for events waits: less than a call may take.
const eventsWait = 5 * time.Second

// Events hears what happens to the VMs of this node, each once, in the order in which godwitd has heard it: what
// containerd tells of containers and tasks, the operations, and the moves from and to the node. It returns nil once
// Until has passed, else the error of do, or of ctx. While godwitd is started again it waits.
func (c *Client) Events(ctx context.Context, o EventOptions, do func(*nodev1.NodeEvent) error) error {
	if !o.Until.IsZero() && o.Since.After(o.Until) {
		return fmt.Errorf("events since %s until %s: the end comes before the beginning: %w",
			o.Since.Format(time.RFC3339), o.Until.Format(time.RFC3339), errdefs.ErrInvalidArgument)
	}
	f := &eventFollower{EventOptions: o, do: do, ask: c.history, Patience: moves.Patience{Waits: o.Waits}}
	return f.follow(ctx)
}

func (c *Client) history(ctx context.Context, req *nodev1.HistoryRequest) (*nodev1.HistoryResponse, error) {
	node, err := c.Node(ctx)
	if err != nil {
		return nil, err
	}
	resp, err := node.History(ctx, req)
	if errdefs.IsNotImplemented(err) {
		return nil, fmt.Errorf("the godwitd of this node is of an earlier build, and keeps no events. "+
			"Moves are told by: godwit watch: %w", errdefs.ErrNotImplemented)
	}
	return resp, err
}

// eventFollower asks for one part of the events after the other.
type eventFollower struct {
	EventOptions
	moves.Patience
	ask func(context.Context, *nodev1.HistoryRequest) (*nodev1.HistoryResponse, error)
	do  func(*nodev1.NodeEvent) error

	last *nodev1.NodeEvent // that was heard of
}

func (f *eventFollower) follow(ctx context.Context) error {
	req := &nodev1.HistoryRequest{SinceUnixNano: math.MaxInt64}
	if f.Since.IsZero() && !f.Until.IsZero() && time.Now().After(f.Until) {
		req.SinceUnixNano = 0
	}
	if !f.Since.IsZero() {
		req.SinceUnixNano = f.Since.UnixNano()
	}
	for first := true; ; first = false {
		over := !f.Until.IsZero() && !time.Now().Before(f.Until)
		resp, err := f.part(ctx, req)
		if err != nil {
			return err
		}
		if first && !f.Since.IsZero() {
			f.begin(resp)
		}
		if err := f.tell(req, resp); err != nil {
			return err
		}
		if over && len(resp.GetEvents()) == 0 && !resp.GetLost() {
			return nil
		}
		f.next(req)
	}
}

// part is one answer. A question after the first one waits for an event, and not beyond Until.
func (f *eventFollower) part(ctx context.Context, req *nodev1.HistoryRequest) (resp *nodev1.HistoryResponse,
	err error) {
	if !f.Until.IsZero() {
		req.WaitMs = min(req.GetWaitMs(), max(time.Until(f.Until).Milliseconds()+1, 0))
	}
	err = f.Ask(ctx, func(ctx context.Context) (err error) {
		resp, err = f.ask(ctx, req)
		return err
	})
	return resp, err
}

// begin says what cannot be told of the time since Since.
func (f *eventFollower) begin(resp *nodev1.HistoryResponse) {
	if old := resp.GetOldest(); old.GetId() > 1 && old.GetUnixNano() > f.Since.UnixNano() {
		f.gap(fmt.Sprintf("%d events of before %s are not kept any more", old.GetId()-1, clock(old.GetUnixNano())))
	}
}

func (f *eventFollower) tell(req *nodev1.HistoryRequest, resp *nodev1.HistoryResponse) error {
	switch first := resp.GetEvents(); {
	case resp.GetLost():
		f.gap("events after " + clock(f.last.GetUnixNano()) + " may be missing: godwitd has lost the end of its history")
	case req.GetAfter() > 0 && len(first) > 0 && first[0].GetId() > req.GetAfter()+1:
		n := first[0].GetId() - req.GetAfter() - 1
		f.gap(fmt.Sprintf("%d events were dropped here: they are not kept any more", n))
	}
	for i, ev := range resp.GetEvents() {
		if i > 0 && ev.GetId() > f.last.GetId()+1 && f.last.GetId() > 0 && req.GetAfter() > 0 {
			f.gap(fmt.Sprintf("%d events were dropped here: they could not be written down",
				ev.GetId()-f.last.GetId()-1))
		}
		f.last = ev
		at := time.Unix(0, ev.GetUnixNano())
		if at.Before(f.Since) || !f.Until.IsZero() && at.After(f.Until) {
			continue
		}
		if err := f.do(ev); err != nil {
			return err
		}
	}
	if f.last == nil || resp.GetLost() && len(resp.GetEvents()) == 0 {
		f.last = resp.GetLast() // nil: there is no event, and the next question waits for the first one
	}
	return nil
}

// next asks for what comes after all that was heard of.
func (f *eventFollower) next(req *nodev1.HistoryRequest) {
	req.WaitMs = eventsWait.Milliseconds()
	req.After, req.AfterUnixNano = f.last.GetId(), f.last.GetHeardUnixNano()
	if f.last == nil {
		req.SinceUnixNano = 0 // there was no event at all
	}
}

func (f *eventFollower) gap(text string) {
	if f.Gap != nil {
		f.Gap(text)
	}
}

func clock(nano int64) string { return time.Unix(0, nano).UTC().Format(time.RFC3339) }
