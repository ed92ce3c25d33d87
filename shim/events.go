package shim

import (
	"context"
	"log/slog"
	"sync"

	"github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/v2/core/runtime"
)

// Publisher takes events in the order in which they are given.
type Publisher interface {
	Publish(ctx context.Context, topic string, event any) error
}

// eventQueue publishes from one goroutine, so that a slow containerd neither blocks a
// call nor changes the order.
type eventQueue struct {
	publisher Publisher
	log       *slog.Logger
	mu        sync.Mutex
	waiting   []any
	wake      chan struct{}
	done      chan struct{}
	closed    bool
}

func newEventQueue(ctx context.Context, p Publisher, log *slog.Logger) *eventQueue {
	q := &eventQueue{publisher: p, log: log, wake: make(chan struct{}, 1), done: make(chan struct{})}
	go q.run(context.WithoutCancel(ctx))
	return q
}

func (q *eventQueue) send(event any) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	q.waiting = append(q.waiting, event)
	q.signal()
}

func (q *eventQueue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// close returns when what was sent has been published.
func (q *eventQueue) close() {
	q.mu.Lock()
	q.closed = true
	q.signal()
	q.mu.Unlock()
	<-q.done
}

func (q *eventQueue) run(ctx context.Context) {
	defer close(q.done)
	for range q.wake {
		q.mu.Lock()
		batch, closed := q.waiting, q.closed
		q.waiting = nil
		q.mu.Unlock()
		for _, e := range batch {
			q.publish(ctx, e)
		}
		if closed {
			return
		}
	}
}

func (q *eventQueue) publish(ctx context.Context, event any) {
	if err := q.publisher.Publish(ctx, topic(event), event); err != nil {
		q.log.Error("publish event", "topic", topic(event), "error", err)
	}
}

func topic(event any) string {
	switch event.(type) {
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
	}
	return runtime.TaskUnknownTopic
}
