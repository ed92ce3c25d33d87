package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/api/moves"
	"godwit.dev/godwit/internal/turn"
	"godwit.dev/godwit/migrate/store"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

const kindEvent = "event"

const (
	// Remembered is how many events there are at most.
	Remembered = 4096

	// heardInterval is how often who waits for events looks for those of other controllers.
	heardInterval = 250 * time.Millisecond

	// retryInterval is between tries of a store that is out of reach.
	retryInterval = 100 * time.Millisecond
)

// events are numbered and durable: who comes late, or comes back, hears what it missed.
// A number is taken by making the note of that name, so that of several
// controllers one has it, and none is left out.
type events struct {
	writing turn.Turn // who numbers an event, until the store has it

	mu    sync.Mutex
	all   []*nodev1.MoveEvent // oldest first
	last  uint64
	fresh chan struct{} // closed with the next one
}

func eventKey(id uint64) string { return fmt.Sprintf("%020d", id) }

func (l *events) open(ctx context.Context, notes store.Notes) error {
	l.fresh, l.writing = make(chan struct{}), turn.New()
	if err := l.hear(ctx, notes); err != nil {
		return err
	}
	return l.forget(ctx, notes)
}

// hear reads what others have written.
func (l *events) hear(ctx context.Context, notes store.Notes) error {
	all, err := notes.Notes(ctx, kindEvent, eventKey(l.newest()))
	if err != nil {
		return err
	}
	for _, n := range all {
		ev := new(nodev1.MoveEvent)
		if err := proto.Unmarshal(n.Value, ev); err != nil || eventKey(ev.GetId()) != n.Key {
			return fmt.Errorf("decode event %q: %v: %w", n.Key, err, errdefs.ErrDataLoss)
		}
		l.add(ev)
	}
	return nil
}

func (l *events) newest() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// add takes an event that is in the store.
func (l *events) add(ev *nodev1.MoveEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ev.GetId() <= l.last { // heard from the store already
		return
	}
	l.last, l.all = ev.GetId(), append(l.all, ev)
	close(l.fresh)
	l.fresh = make(chan struct{})
}

// forget removes the oldest. Of several controllers each removes what it knows of.
func (l *events) forget(ctx context.Context, notes store.Notes) error {
	for {
		l.mu.Lock()
		if len(l.all) <= Remembered {
			l.mu.Unlock()
			return nil
		}
		oldest := l.all[0]
		l.all[0], l.all = nil, l.all[1:]
		l.mu.Unlock()
		if err := notes.Note(ctx, kindEvent, eventKey(oldest.GetId()), nil); err != nil {
			return fmt.Errorf("forget event: %w", err)
		}
	}
}

// next numbers ev, unless it is among the events already: under the number that it was
// tried with, whose answer was lost, or by another's word. A move begins once, is committed once,
// and ends once; each of its attempts switches over once. That a wake fits no node is told once,
// however often it is tried. What a node has done by itself, it
// tells until it was answered.
func (l *events) next(ev *nodev1.MoveEvent) (told bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	which := once(ev)
	for _, was := range slices.Backward(l.all) {
		if which == "" && (ev.GetId() == 0 || was.GetId() < ev.GetId()) {
			break
		}
		if was.GetId() == ev.GetId() && proto.Equal(was, ev) || which != "" && was.GetOperation() == ev.GetOperation() &&
			once(was) == which {
			return true
		}
	}
	ev.Id = l.last + 1
	return false
}

// once is what an event tells of, of its operation if it has one, where that comes once.
func once(ev *nodev1.MoveEvent) string {
	switch kind := ev.GetType(); {
	case kind == moves.Outlived, kind == moves.Foreign:
		return fmt.Sprintf("%s %s/%s %s %s", kind, ev.GetVm().GetNamespace(), ev.GetVm().GetId(), ev.GetSource(),
			ev.GetReason())
	case ev.GetOperation() == "":
		return ""
	case moves.Settled(kind):
		return "last"
	case kind == moves.Switching:
		return fmt.Sprintf("%s %d", kind, ev.GetAttempt())
	case kind == moves.Started, kind == moves.Committed, kind == moves.NoCapacity:
		return kind
	}
	return ""
}

// Append numbers ev and makes it durable. A store that is out of reach is asked again until ctx ends; an answer
// that was lost leaves no second one. Of an operation there is one first and one last event, whichever controller
// appends them.
func (b *State) Append(ctx context.Context, ev *nodev1.MoveEvent) error {
	l := &b.log
	if err := l.writing.Take(ctx); err != nil {
		return fmt.Errorf("store event: wait for the one before: %w", err)
	}
	defer l.writing.Give()
	ev = proto.CloneOf(ev)
	ev.Id = 0
	ev.UnixNano = b.now().UnixNano()
	heard := !b.shared // else who lags might take a number whose event is forgotten already
	for {
		err := error(nil)
		if !heard {
			err = l.hear(ctx, b.notes)
			heard = err == nil
		}
		if heard {
			err = b.number(ctx, ev)
		}
		switch {
		case err == nil:
			return l.forget(ctx, b.notes)
		case errdefs.IsAlreadyExists(err): // it is another one's by now
			continue
		case !errdefs.IsUnavailable(err):
			return fmt.Errorf("store event %d: %w", ev.GetId(), err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("store event %d: %w", ev.GetId(), err)
		case <-time.After(retryInterval):
		}
	}
}

// number tries to store ev under the next number. Where that is taken it looks up by
// whom; who tries again finds out whether it was taken for ev.
func (b *State) number(ctx context.Context, ev *nodev1.MoveEvent) error {
	l := &b.log
	if l.next(ev) {
		return nil
	}
	value, err := proto.Marshal(ev)
	if err != nil {
		return err
	}
	err = b.notes.NoteNew(ctx, kindEvent, eventKey(ev.GetId()), value)
	if err == nil {
		l.add(ev)
		return nil
	}
	if !errdefs.IsAlreadyExists(err) {
		return err
	}
	if err := l.hear(ctx, b.notes); err != nil {
		return err
	}
	if l.newest() < ev.GetId() {
		return fmt.Errorf("its number is taken by nothing that can be read: %w", errdefs.ErrDataLoss)
	}
	return err
}

// Events answers the events after the one with that id; where there is none it waits for
// one, up to wait.
func (b *State) Events(ctx context.Context, after uint64, wait time.Duration) []*nodev1.MoveEvent {
	timeout := time.NewTimer(wait)
	defer timeout.Stop()
	for {
		b.hearOthers(ctx)
		found, fresh := b.log.after(after)
		if len(found) > 0 || wait <= 0 {
			return found
		}
		look := (<-chan time.Time)(nil)
		if b.shared {
			look = time.After(heardInterval)
		}
		select {
		case <-fresh:
		case <-look:
		case <-timeout.C:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// hearOthers is hear where others write too. What cannot be read now is heard later.
func (b *State) hearOthers(ctx context.Context) {
	if !b.shared {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, refreshTimeout)
	defer cancel()
	if err := b.log.hear(ctx, b.notes); err != nil && ctx.Err() == nil {
		slog.WarnContext(ctx, "read the events", "error", err)
	}
}

// after answers what is known after an id, and what tells of the next one.
func (l *events) after(id uint64) (found []*nodev1.MoveEvent, fresh <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := len(l.all)
	for i > 0 && l.all[i-1].GetId() > id {
		i--
	}
	return append(found, l.all[i:]...), l.fresh
}
