package events

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/containerd/api/events"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
)

// awayPublisher answers the first calls with errs, one each, after delay.
type awayPublisher struct {
	delay time.Duration

	mu   sync.Mutex
	errs []error
	got  []string
}

func (p *awayPublisher) Publish(_ context.Context, _ string, event any) error {
	time.Sleep(p.delay)
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.errs) > 0 {
		err := p.errs[0]
		p.errs = p.errs[1:]
		if err != nil {
			return err
		}
	}
	p.got = append(p.got, event.(*events.TaskExecAdded).ExecID)
	return nil
}

func (p *awayPublisher) all() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.got
}

// TestEventsKeepTheirOrder: a containerd that is away for a while gets every event
// once and in order; one that it refuses is not given again.
func TestEventsKeepTheirOrder(t *testing.T) {
	gone, refused := errdefs.ErrUnavailable, errors.New("not understood")
	for name, c := range map[string]struct {
		errs []error
		want []string
	}{
		"there":           {want: []string{"a", "b", "c"}},
		"away at first":   {errs: []error{gone, gone, gone}, want: []string{"a", "b", "c"}},
		"away in between": {errs: []error{nil, gone, gone}, want: []string{"a", "b", "c"}},
		"refuses one":     {errs: []error{nil, refused}, want: []string{"a", "c"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &awayPublisher{errs: c.errs}
				q := NewQueue(t.Context(), p, slog.New(slog.DiscardHandler))
				for _, id := range []string{"a", "b", "c"} {
					q.Send(&events.TaskExecAdded{ExecID: id})
				}
				time.Sleep(time.Minute)
				q.Close()
				synctest.Wait()
				if diff := cmp.Diff(c.want, p.all()); diff != "" {
					t.Errorf("events (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TestEventsClose: the end waits for what is under way. It waits for one more try at a
// containerd that was away, which may have come back. It waits for a slow containerd no longer
// than its bound.
func TestEventsClose(t *testing.T) {
	for name, c := range map[string]struct {
		delay  time.Duration
		errs   []error
		before time.Duration // between the events and the close
		took   time.Duration
		want   int
	}{
		"prompt": {delay: time.Millisecond, took: 10 * time.Millisecond, want: 10},
		"slow":   {delay: 2 * time.Second, took: eventsClose, want: 10},
		"away":   {errs: []error{errdefs.ErrUnavailable}, before: time.Millisecond, took: 0, want: 10},
		"away long": {delay: time.Second, errs: make20(errdefs.ErrUnavailable), before: 4500 * time.Millisecond,
			took: 1500 * time.Millisecond, want: 0},
		"back": {errs: []error{errdefs.ErrUnavailable, errdefs.ErrUnavailable}, before: eventRetry + time.Millisecond,
			took: 0, want: 10},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &awayPublisher{delay: c.delay, errs: c.errs}
				q := NewQueue(t.Context(), p, slog.New(slog.DiscardHandler))
				for range 10 {
					q.Send(&events.TaskExecAdded{})
				}
				time.Sleep(c.before)
				begun := time.Now()
				q.Close()
				if took := time.Since(begun); took != c.took {
					t.Errorf("close took %v, want %v", took, c.took)
				}
				q.Send(&events.TaskExecAdded{}) // goes nowhere
				<-q.done
				q.Close()
				if got := len(p.all()); got != c.want {
					t.Errorf("%d events arrived, want %d", got, c.want)
				}
			})
		})
	}
}

func make20(err error) []error {
	errs := make([]error, 20)
	for i := range errs {
		errs[i] = err
	}
	return errs
}

// TestEventsBounded: a containerd that never comes back costs a bounded memory.
func TestEventsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &awayPublisher{delay: time.Minute, errs: []error{errdefs.ErrUnavailable}}
		q := NewQueue(t.Context(), p, slog.New(slog.DiscardHandler))
		for range 2 * maxEvents {
			q.Send(&events.TaskExecAdded{})
		}
		q.mu.Lock()
		kept := len(q.waiting)
		q.mu.Unlock()
		if kept > maxEvents {
			t.Errorf("%d events are kept, want at most %d", kept, maxEvents)
		}
		q.Close()
		<-q.done
	})
}
