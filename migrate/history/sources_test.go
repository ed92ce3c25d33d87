package history

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/moves"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/migrate/engine"
	service "godwit.dev/godwit/migrate/moves"
)

// teller tells events of moves, and fails at call N.
type teller struct {
	moves.Source
	service.Cluster
	events []*nodev1.MoveEvent
	calls  int
	fails  int
	over   func() // called once all is told
}

func (c *teller) Events(ctx context.Context, req *nodev1.EventsRequest) (*nodev1.EventsResponse, error) {
	if c.calls++; c.calls == c.fails {
		return nil, errdefs.ErrUnavailable
	}
	return (&service.Service{Cluster: list{c}}).Events(ctx, req)
}

type list struct{ *teller }

func (l list) Events(_ context.Context, after uint64, wait time.Duration) (all []*nodev1.MoveEvent) {
	for _, ev := range l.events {
		if ev.GetId() > after {
			all = append(all, ev)
		}
	}
	if len(all) == 0 && wait > 0 {
		l.over()
	}
	return all
}

// The moves of this node are told once, over restarts of godwitd and errors at each call of the controller. Those of
// others are not told, nor those of before the history began. What the controller has forgotten is said. A store of
// records that was made anew counts from the beginning, and hides nothing.
func TestFollowMoves(t *testing.T) {
	for fails := range 6 {
		synctest.Test(t, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "events.jsonl")
			now := time.Now().UnixNano()
			move := func(id uint64, kind, from, to string) *nodev1.MoveEvent {
				return &nodev1.MoveEvent{Id: id, Type: kind, Vm: web(), Operation: fmt.Sprint("m", id/10), Attempt: 1,
					Source: from, Destination: to, UnixNano: now + int64(id)*int64(time.Second)}
			}
			c := &teller{fails: fails}
			hear := func(events ...*nodev1.MoveEvent) *History {
				h := Open(path, "a")
				ctx, cancel := context.WithCancel(t.Context())
				c.events, c.over, c.calls = events, cancel, 0
				h.FollowMoves(ctx, c)
				if err := h.Close(); err != nil {
					t.Fatal(err)
				}
				return h
			}
			old := move(1, moves.Started, "a", "b")
			old.UnixNano = now - 1
			first := []*nodev1.MoveEvent{old, move(2, moves.Started, "a", "b"), move(3, moves.Started, "c", "b"),
				move(4, moves.Switching, "a", "b")}
			hear(first...)
			last := move(5, moves.Succeeded, "a", "b")
			hear(append(first, last)...)
			hear(move(30, moves.Started, "b", "a"))
			anew := move(1, moves.Started, "b", "a")
			anew.UnixNano, anew.Operation = now+int64(time.Hour), "n"
			h := hear(anew)
			var got []string
			for _, ev := range h.all {
				if ev.GetEvent() != Stop {
					got = append(got, ev.GetEvent()+" "+ev.GetPhase()+" "+ev.GetOperation())
				}
			}
			want(t, got, "move begun m0", "move switching m0", "move done m0", "gap  ", "move begun m3",
				"gap  ", "move begun n")
		})
	}
}

// A store of records that is put back from a copy while godwitd follows gives its numbers a second time. Each move
// after that is told, whether the count is below the last one that was heard, or above, and none twice.
func TestFollowMovesOverARestore(t *testing.T) {
	for _, until := range []uint64{3, 5, 9} {
		synctest.Test(t, func(t *testing.T) {
			h := Open(filepath.Join(t.TempDir(), "events.jsonl"), "a")
			now := time.Now().UnixNano()
			move := func(id uint64, operation string, at time.Duration) *nodev1.MoveEvent {
				return &nodev1.MoveEvent{Id: id, Type: moves.Started, Vm: web(), Operation: operation, Source: "a",
					Destination: "b", UnixNano: now + int64(at)}
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			c := &teller{}
			for id := range uint64(5) {
				c.events = append(c.events, move(id+1, fmt.Sprint("before", id), time.Duration(id+1)*time.Second))
			}
			c.over = func() {
				c.events, c.over = c.events[:2], cancel // the copy has two
				for id := uint64(3); id <= until; id++ {
					c.events = append(c.events, move(id, fmt.Sprint("after", id), time.Duration(id)*time.Minute))
				}
			}
			h.FollowMoves(ctx, c)
			if err := h.Close(); err != nil {
				t.Fatal(err)
			}
			told := map[string]int{}
			for _, ev := range h.all {
				told[ev.GetEvent()+ev.GetOperation()]++
			}
			for id := uint64(3); id <= until; id++ {
				if n := told[fmt.Sprint("moveafter", id)]; n != 1 {
					t.Errorf("up to %d: event %d is told %d times", until, id, n)
				}
			}
			if told["gap"] != 1 || len(told) != 5+int(until-2)+2 {
				t.Errorf("told %v", told)
			}
		})
	}
}

// Records that do not know an operation prove nothing of its end. What is told of it later counts.
func TestSettleUnknown(t *testing.T) {
	h := Open(filepath.Join(t.TempDir(), "events.jsonl"), "a")
	defer h.Close()
	op := engine.Event{Type: engine.Opened, VM: web(), Operation: "o", Kind: nodev1.Kind_KIND_WAKE,
		Op: &nodev1.Operation{Id: "o"}}
	h.Event(t.Context(), op)
	read(t, h, &nodev1.HistoryRequest{}, 1)
	for n := range 2 {
		if err := h.Settle(t.Context(), &settled{calls: 1}); err != nil {
			t.Fatal(err)
		}
		read(t, h, &nodev1.HistoryRequest{}, 2)
		if n == 1 {
			op.Type = engine.Succeeded
			h.Event(t.Context(), op)
		}
	}
	want(t, read(t, h, &nodev1.HistoryRequest{}, 3), "1 wake begun", "2 wake unknown", "3 wake done")
}
