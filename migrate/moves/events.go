package moves

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"godwit.dev/godwit/api/moves"
	"godwit.dev/godwit/migrate/engine"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Journal takes the engine's events of moves and writes them down, in order, while the engine goes on: a
// switch-over waits for no event.
type Journal struct {
	append func(context.Context, *nodev1.MoveEvent) error
	queue  chan said
	ends   chan struct{} // closed by Close: nothing waits any more
	done   chan struct{}
	life   context.Context // of what is being written
	end    context.CancelFunc

	mu     sync.Mutex
	said   map[string]string // the last reason of a retry, by operation
	closed bool              // nothing is queued any more
}

// said is an event, which is not written before from.
type said struct {
	*nodev1.MoveEvent
	from time.Time
}

// NewJournal writes by append until Close.
func NewJournal(append func(context.Context, *nodev1.MoveEvent) error) *Journal {
	j := &Journal{append: append, queue: make(chan said, 1024), ends: make(chan struct{}), done: make(chan struct{}),
		said: map[string]string{}}
	j.life, j.end = context.WithCancel(context.Background())
	go j.write()
	return j
}

// Close writes what is left, within closeBound. An event that is not written then, or comes later, is missing in the
// list of events. A later one of its operation tells it too.
func (j *Journal) Close() error {
	j.mu.Lock()
	if !j.closed {
		j.closed = true
		close(j.ends)
		close(j.queue)
	}
	j.mu.Unlock()
	late := time.AfterFunc(closeBound, j.end)
	<-j.done
	late.Stop()
	j.end()
	return nil
}

// closeBound is how long the end of a controller waits for its store. A variable for the tests.
var closeBound = 2 * time.Second

// writeTimeout bounds what a store that is out of reach is waited for: an etcd elects a new
// leader within a second or two.
const writeTimeout = 30 * time.Second

// laterAppend is how long a switch-over is not written down. The store would sync it while a VM stands still for
// the commit. The commit waits for the same store and, on the controller's node, for the same disk as the source's
// vote. A variable for the tests.
var laterAppend = 100 * time.Millisecond

func (j *Journal) write() {
	defer close(j.done)
	for ev := range j.queue {
		select {
		case <-time.After(time.Until(ev.from)):
		case <-j.ends:
		}
		ctx, cancel := context.WithTimeout(j.life, writeTimeout)
		if err := j.append(ctx, ev.MoveEvent); err != nil {
			slog.Warn("write event", "type", ev.GetType(), "operation", ev.GetOperation(), "error", err)
		}
		cancel()
	}
}

// types of the engine's events, as they are told.
var types = map[engine.Type]string{
	engine.Opened: moves.Started, engine.Switching: moves.Switching, engine.Committed: moves.Committed,
	engine.Succeeded: moves.Succeeded, engine.Aborting: moves.Aborting, engine.Aborted: moves.Aborted,
	engine.Failed: moves.Failed,
	engine.Lost:   moves.Lost, engine.Retrying: moves.Retrying, engine.Retargeted: moves.Retargeted,
	engine.CleanupPending: moves.CleanupPending,
}

// Event implements engine.Events.
func (j *Journal) Event(ctx context.Context, ev engine.Event) {
	kind := types[ev.Type]
	if ev.Kind != nodev1.Kind_KIND_MIGRATE || kind == "" {
		return
	}
	out := &nodev1.MoveEvent{
		Type: kind, Vm: ev.VM, Operation: ev.Operation, Reason: ev.Reason,
		Attempt: ev.Op.GetAttempt(), Source: ev.Op.GetSource(), Destination: ev.Op.GetDestination(),
	}
	if out.Reason == "" && ev.Err != nil {
		out.Reason = ev.Err.Error()
	}
	if j.repeated(out) {
		return
	}
	from := time.Now()
	if kind == moves.Switching {
		from = from.Add(laterAppend)
	}
	for _, out := range append(before(out, ev.Op), out) {
		if !j.put(said{out, from}) {
			slog.WarnContext(ctx, "event dropped: the store does not keep up, or godwitd stops", "type", out.GetType(),
				"operation", ev.Operation)
		}
	}
}

// put queues an event, and waits for nothing. A call that came before Close may tell its event after it.
func (j *Journal) put(ev said) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return false
	}
	select {
	case j.queue <- ev:
		return true
	default:
		return false
	}
}

// before are the events that op must have had by the time of ev: the controller that was to tell them may have died
// after the change of its record. The cluster takes each of them once.
func before(ev *nodev1.MoveEvent, op *nodev1.Operation) (all []*nodev1.MoveEvent) {
	told := func(kind string) *nodev1.MoveEvent {
		return &nodev1.MoveEvent{
			Type: kind, Vm: ev.GetVm(), Operation: ev.GetOperation(), Attempt: op.GetAttempt(), Source: op.GetSource(),
			Destination: op.GetDestination(),
		}
	}
	switch {
	case ev.GetType() == moves.Committed:
		all = append(all, told(moves.Switching))
	case moves.Settled(ev.GetType()) && op.GetCommittedUnixNano() != 0:
		all = append(all, told(moves.Switching), told(moves.Committed))
	}
	return all
}

// repeated reports whether a retry has the reason of the one before.
func (j *Journal) repeated(ev *nodev1.MoveEvent) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if moves.Settled(ev.GetType()) {
		delete(j.said, ev.GetOperation())
		return false
	}
	if ev.GetType() != moves.Retrying {
		return false
	}
	again := j.said[ev.GetOperation()] == ev.GetReason()
	j.said[ev.GetOperation()] = ev.GetReason()
	return again
}
