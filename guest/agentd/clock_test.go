package agentd

import (
	"errors"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	agentv1 "godwit.dev/godwit/api/agent/lean"
)

// fakeClock stands still where it was set.
type fakeClock struct {
	at   int64
	sets int
	err  error
}

func (c *fakeClock) now() int64 { return c.at }

func (c *fakeClock) set(at int64) error {
	if c.err == nil {
		c.at = at
	}
	c.sets++
	return c.err
}

// A clock that stood still goes forward, never back, and is left alone where it is near enough.
func TestSetClock(t *testing.T) {
	const now = int64(1_700_000_000_000_000_000)
	for name, c := range map[string]struct{ host, behind int64 }{
		"behind":       {now + int64(3*time.Second), int64(3 * time.Second)},
		"just enough":  {now + int64(clockStep), int64(clockStep)},
		"near enough":  {now + int64(clockStep) - 1, 0},
		"right":        {now, 0},
		"ahead":        {now - 1, 0},
		"an old word":  {now - int64(time.Hour), 0},
		"another life": {1, 0},
	} {
		clock := &fakeClock{at: now}
		s := &Service{clock: clock}
		r, err := s.SetClock(t.Context(), &agentv1.SetClockRequest{UnixNano: c.host})
		if err != nil || r.BehindNano != c.behind || clock.at != now+c.behind || clock.sets > 0 != (c.behind > 0) {
			t.Errorf("%s: %v, %v; the clock went %d ns, set %d times", name, r, err, clock.at-now, clock.sets)
		}
	}
	s := &Service{clock: &fakeClock{at: now, err: errors.New("no")}}
	if _, err := s.SetClock(t.Context(), &agentv1.SetClockRequest{UnixNano: now * 2}); err == nil {
		t.Error("a clock that cannot be set is told as set")
	}
	for _, at := range []int64{0, -1} {
		if _, err := s.SetClock(t.Context(), &agentv1.SetClockRequest{UnixNano: at}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("set to %d: %v", at, err)
		}
	}
}

// A Restored that is repeated does not set the clock back to the time of the first one; another one
// does, whatever the clock says.
func TestRestoredAgainKeepsTheClock(t *testing.T) {
	clock := &fakeClock{at: 500}
	s := &Service{clock: clock}
	for _, c := range []struct{ told, passed, want int64 }{{1000, 30, 1030}, {1000, 5, 1035}, {900, 0, 900}, {0, 0, 900}} {
		if err := s.noteWake(c.told); err != nil {
			t.Fatal(err)
		}
		if clock.at += c.passed; clock.at != c.want {
			t.Errorf("told %d: the clock is at %d, want %d", c.told, clock.at, c.want)
		}
	}
}
