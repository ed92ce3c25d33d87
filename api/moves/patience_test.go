package moves

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A peer that has answered once is waited for, in pauses that grow to two seconds. That is told
// once each time. A peer that has never answered, or that refuses, is not waited for.
func TestPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told, calls := 0, 0
		p := &Patience{Waits: func(error) { told++ }}
		answers := func(errs ...error) func(context.Context) error {
			calls = 0
			return func(context.Context) error {
				calls++
				return errs[calls-1]
			}
		}
		gone := errdefs.ErrUnavailable
		if err := p.Ask(t.Context(), answers(gone)); !errdefs.IsUnavailable(err) || told != 0 {
			t.Errorf("never there: %v, told %d times", err, told)
		}
		if err := p.Ask(t.Context(), answers(errdefs.ErrNotFound)); !errdefs.IsNotFound(err) || !p.Met {
			t.Errorf("a refusal is an answer: %v", err)
		}
		for n, away := range []error{gone, context.Canceled, context.DeadlineExceeded, fmt.Errorf("x: %w", gone)} {
			begun := time.Now()
			err := p.Ask(t.Context(), answers(away, away, away, away, away, away, away, nil))
			// 100, 200, 400, 800, 1600, 2000, 2000 ms
			if took := time.Since(begun); err != nil || calls != 8 || told != n+1 || took != 7100*time.Millisecond {
				t.Errorf("%v: %v after %v and %d calls, told %d times", away, err, took, calls, told)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour+time.Millisecond)
		defer cancel()
		begun := time.Now()
		if err := p.Ask(ctx, func(context.Context) error {
			return gone
		}); !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) != time.Hour+time.Millisecond {
			t.Errorf("without an end: %v after %v", err, time.Since(begun))
		}
	})
}

// forgets is a source that knows an operation for a while.
type forgets struct {
	events []*nodev1.MoveEvent
	knows  []error // what Get answers, one after the other
}

func (f *forgets) Events(_ context.Context, req *nodev1.EventsRequest) (*nodev1.EventsResponse, error) {
	resp := &nodev1.EventsResponse{}
	for _, ev := range f.events {
		if ev.GetId() > req.GetAfter() {
			resp.Events = append(resp.Events, ev)
		}
	}
	if len(resp.Events) == 0 {
		time.Sleep(time.Duration(req.GetWaitMs()) * time.Millisecond)
	}
	return resp, nil
}

func (f *forgets) Get(context.Context, *nodev1.StatusRequest) (*nodev1.StatusResponse, error) {
	err := f.knows[0]
	if f.knows = f.knows[1:]; len(f.knows) == 0 {
		f.events = append(f.events, &nodev1.MoveEvent{Id: 9, Operation: "m", Type: Succeeded})
	}
	return &nodev1.StatusResponse{}, err
}

// An operation that was known and is forgotten has no last event any more: who follows it hears so.
// One that is not known yet is waited for; an answer of another kind is none.
func TestFollowWhatIsForgotten(t *testing.T) {
	for name, c := range map[string]struct {
		knows []error
		want  error
	}{
		"to be ordered": {[]error{errdefs.ErrNotFound, errdefs.ErrNotFound, nil}, nil},
		"forgotten":     {[]error{errdefs.ErrNotFound, nil, errdefs.ErrNotFound, nil}, errdefs.ErrNotFound},
		"away":          {[]error{errdefs.ErrUnavailable, nil}, nil},
		"not allowed":   {[]error{errdefs.ErrPermissionDenied, nil}, errdefs.ErrPermissionDenied},
	} {
		synctest.Test(t, func(t *testing.T) {
			heard := 0
			err := Follow(t.Context(), &forgets{knows: c.knows}, &nodev1.WatchRequest{Operation: "m", UntilSettled: true},
				func(*nodev1.MoveEvent) error {
					heard++
					return nil
				})
			if !errors.Is(err, c.want) || (err == nil) != (heard == 1) {
				t.Errorf("%s: %v, heard %d", name, err, heard)
			}
		})
	}
}

// Events that are no longer to be had are told as a gap, of one event or of many. From the
// oldest one on there is none.
func TestGaps(t *testing.T) {
	end := errors.New("end")
	var events []*nodev1.MoveEvent
	for _, id := range []uint64{5, 6, 8, 20} {
		events = append(events, &nodev1.MoveEvent{Id: id})
	}
	for after, want := range map[uint64][]uint64{0: {7, 7, 9, 19}, 3: {4, 4, 7, 7, 9, 19}, 4: {7, 7, 9, 19},
		8: {9, 19}, 19: nil} {
		var got []uint64
		f := &Follower{From: &forgets{events: events}, Gap: func(first, last uint64) { got = append(got, first, last) }}
		f.Do = func(ev *nodev1.MoveEvent) error {
			if ev.GetId() == 20 {
				return end
			}
			return nil
		}
		if err := f.Follow(t.Context(), &nodev1.WatchRequest{After: after}); !errors.Is(err, end) ||
			!slices.Equal(got, want) {
			t.Errorf("after %d: %v, gaps %v, want %v", after, err, got, want)
		}
	}
}
