// Package events publishes a shim's events to containerd, in their order and from one
// goroutine: while containerd is away they wait.
package events

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/v2/core/runtime"
	"github.com/containerd/errdefs"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/api/spec"
)

// Publisher takes events in the order in which they are given. An Unavailable error
// means that the event may be given again.
type Publisher interface {
	Publish(ctx context.Context, topic string, event any) error
}

const (
	// maxEvents bounds what is kept for a containerd that does not answer.
	maxEvents = 2048
	// eventRetry is the pause between two tries at the same event.
	eventRetry = time.Second
	// eventsClose is how long the end of the shim waits for a slow containerd.
	eventsClose = 5 * time.Second
)

// Queue publishes from one goroutine, so that a slow containerd neither blocks a
// call nor changes the order. While containerd is away, for a restart, the queue waits
// with its first event.
type Queue struct {
	publisher Publisher
	log       *slog.Logger
	wake      chan struct{}
	closing   chan struct{}
	done      chan struct{}

	mu      sync.Mutex
	waiting []any
	closed  bool
	away    bool // the last try did not reach containerd
}

func NewQueue(ctx context.Context, p Publisher, log *slog.Logger) *Queue {
	q := &Queue{
		publisher: p, log: log, wake: make(chan struct{}, 1),
		closing: make(chan struct{}), done: make(chan struct{}),
	}
	go q.run(context.WithoutCancel(ctx))
	return q
}

// Send never blocks; after Close it does nothing.
func (q *Queue) Send(event any) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	if len(q.waiting) == maxEvents {
		q.log.Error("drop oldest event: containerd takes none", "topic", topic(q.waiting[0]))
		q.waiting = q.waiting[1:]
	}
	q.waiting = append(q.waiting, event)
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// Close returns when what was sent has been published, or when one more try did not reach
// containerd. A containerd that was away may be the one that asks this shim to leave. Close
// returns after a bound in any case.
func (q *Queue) Close() {
	q.mu.Lock()
	if !q.closed {
		q.closed = true
		close(q.closing)
	}
	q.mu.Unlock()
	t := time.NewTimer(eventsClose)
	defer t.Stop()
	select {
	case <-q.done:
	case <-t.C:
	}
}

func (q *Queue) run(ctx context.Context) {
	defer close(q.done)
	for {
		event, closed := q.pop()
		switch {
		case event != nil:
			if q.publish(ctx, event) {
				continue
			}
			if closed {
				q.log.Error("drop events: containerd is away", "first", topic(event))
				return
			}
			select {
			case <-time.After(eventRetry):
			case <-q.closing:
			}
		case closed:
			return
		default:
			select {
			case <-q.wake:
			case <-q.closing:
			}
		}
	}
}

// pop removes the first event, or answers nil.
func (q *Queue) pop() (event any, closed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) > 0 {
		event, q.waiting = q.waiting[0], q.waiting[1:]
	}
	return event, q.closed
}

// publish reports whether the event is done with. An event that did not reach containerd is the
// first again.
func (q *Queue) publish(ctx context.Context, event any) bool {
	message := event
	if own, ok := event.(notice); ok {
		message = own.TaskOOM
	}
	err := q.publisher.Publish(ctx, topic(event), message)
	away := errdefs.IsUnavailable(err)
	q.mu.Lock()
	defer q.mu.Unlock()
	if err != nil && !(away && q.away) { // told once, not with every try
		q.log.Error("publish event", "topic", topic(event), "again", away, "error", err)
	}
	q.away = away
	if away {
		q.waiting = append([]any{event}, q.waiting...)
	}
	return !away
}

// notice is an event of godwit's own. It is published as a TaskOOM, which names the container
// and is no more than that.
type notice struct {
	topic string
	*events.TaskOOM
}

// OutOfMemory is why a VMM ended that the host killed at the limit of its cgroup, or for
// lack of memory altogether. It is not the container's own limit, which the guest holds.
const OutOfMemory = "vmm-out-of-memory"

// Notify tells of a task what containerd has no event for.
func (q *Queue) Notify(topic, id string) { q.Send(notice{topic, &events.TaskOOM{ContainerID: id}}) }

// Topics of the notices.
const (
	StarvationTopic = "/godwit/" + OutOfMemory // an OOM of the VMM on its host, which is none of the container
	WaitsTopic      = "/godwit/waits-for-ram"  // a VM whose RAM comes while it runs waits for what cannot be read
)

func topic(event any) string {
	switch e := event.(type) {
	case notice:
		return e.topic
	case *events.TaskCreate:
		return runtime.TaskCreateEventTopic
	case *events.TaskStart:
		return runtime.TaskStartEventTopic
	case *events.TaskOOM:
		return runtime.TaskOOMEventTopic
	case *events.TaskExit:
		return runtime.TaskExitEventTopic
	case *events.TaskDelete:
		return runtime.TaskDeleteEventTopic
	case *events.TaskExecAdded:
		return runtime.TaskExecAddedEventTopic
	case *events.TaskExecStarted:
		return runtime.TaskExecStartedEventTopic
	case *events.TaskPaused:
		return runtime.TaskPausedEventTopic
	case *events.TaskResumed:
		return runtime.TaskResumedEventTopic
	case *machinev1.TaskKilled:
		return spec.KilledTopic
	}
	return runtime.TaskUnknownTopic
}
