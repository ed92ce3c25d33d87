package cluster

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/migrate/store"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

const kindEvent = "event"

// Remembered is how many events there are at most.
const Remembered = 4096

// events are numbered and durable: who comes late, or comes back, hears what it missed
// (N-34).
type events struct {
	mu    sync.Mutex
	all   []*nodev1.MoveEvent // oldest first
	last  uint64
	fresh chan struct{} // closed with the next one
}

func eventKey(id uint64) string { return fmt.Sprintf("%020d", id) }

func (l *events) open(ctx context.Context, notes store.Notes) error {
	l.fresh = make(chan struct{})
	all, err := notes.Notes(ctx, kindEvent)
	if err != nil {
		return err
	}
	for _, n := range all {
		ev := new(nodev1.MoveEvent)
		if err := proto.Unmarshal(n.Value, ev); err != nil {
			return fmt.Errorf("decode event %s: %w: %w", n.Key, err, errdefs.ErrDataLoss)
		}
		if l.last, err = strconv.ParseUint(n.Key, 10, 64); err != nil {
			return fmt.Errorf("event %q: %w: %w", n.Key, err, errdefs.ErrDataLoss)
		}
		l.all = append(l.all, ev)
	}
	return nil
}

// Append numbers ev and makes it durable.
func (b *Board) Append(ctx context.Context, ev *nodev1.MoveEvent) error {
	l := &b.log
	l.mu.Lock()
	defer l.mu.Unlock()
	ev = proto.CloneOf(ev)
	ev.Id, ev.UnixNano = l.last+1, b.now().UnixNano()
	value, err := proto.Marshal(ev)
	if err == nil {
		err = b.notes.Note(ctx, kindEvent, eventKey(ev.GetId()), value)
	}
	if err != nil {
		return fmt.Errorf("store event %d: %w", ev.GetId(), err)
	}
	l.last, l.all = ev.GetId(), append(l.all, ev)
	close(l.fresh)
	l.fresh = make(chan struct{})
	for len(l.all) > Remembered {
		if err := b.notes.Note(ctx, kindEvent, eventKey(l.all[0].GetId()), nil); err != nil {
			return fmt.Errorf("forget event: %w", err)
		}
		l.all = slices.Clone(l.all[1:])
	}
	return nil
}

// Events answers the events after the one with that id; where there is none it waits for
// one, up to wait.
func (b *Board) Events(ctx context.Context, after uint64, wait time.Duration) []*nodev1.MoveEvent {
	l := &b.log
	timeout := time.NewTimer(wait)
	defer timeout.Stop()
	for {
		l.mu.Lock()
		fresh := l.fresh
		var found []*nodev1.MoveEvent
		for i := len(l.all) - 1; i >= 0 && l.all[i].GetId() > after; i-- {
			found = append(found, l.all[i])
		}
		l.mu.Unlock()
		if slices.Reverse(found); len(found) > 0 || wait <= 0 {
			return found
		}
		select {
		case <-fresh:
		case <-timeout.C:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}
