package moves

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/api/moves"
	"godwit.dev/godwit/migrate/cluster"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// wordy is a board of events with long reasons, as of wakes that fit none of many nodes.
type wordy struct {
	Board
	events []*nodev1.MoveEvent
}

func (w *wordy) Events(_ context.Context, after uint64, _ time.Duration) []*nodev1.MoveEvent {
	return w.events[after:]
}

// As many events as are remembered are told, whatever they weigh: no answer is more than a connection
// takes.
func TestEventsFitTheConnection(t *testing.T) {
	board := &wordy{}
	for id := range uint64(cluster.Remembered) {
		reason := fmt.Sprint(id)
		if id%8 == 0 {
			reason = strings.Repeat("node n: its RAM pool is full; ", 500)
		}
		board.events = append(board.events, &nodev1.MoveEvent{Id: id + 1, Reason: reason})
	}
	board.events[7].Reason = strings.Repeat("x", 1<<20+1) // alone more than an answer shall have
	s := &Service{Board: board}
	last, end := uint64(0), errors.New("end")
	for after := uint64(0); after < cluster.Remembered; {
		resp, err := s.Events(t.Context(), &nodev1.EventsRequest{After: after})
		if size := proto.Size(resp); err != nil || size > 2<<20 || len(resp.GetEvents()) == 0 {
			t.Fatalf("after %d: %d events of %d bytes, %v", after, len(resp.GetEvents()), size, err)
		}
		after = resp.GetEvents()[len(resp.GetEvents())-1].GetId()
	}
	err := moves.Follow(t.Context(), s, &nodev1.WatchRequest{}, func(ev *nodev1.MoveEvent) error {
		if last++; ev.GetId() != last {
			t.Fatalf("event %d behind %d", ev.GetId(), last-1)
		}
		if last == cluster.Remembered {
			return end
		}
		return nil
	})
	if !errors.Is(err, end) {
		t.Error(err)
	}
}
