//go:build integration

package crash

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	events "github.com/containerd/containerd/api/events"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/typeurl/v2"

	"godwit.dev/godwit/integration/harness"
)

// recorder keeps the events of the task over the deaths of containerd.
type recorder struct {
	task  string
	mu    sync.Mutex
	ready int      // own events that came back
	all   []string // of init: what happened, in order
	codes []uint32 // that init is said to have ended with
}

// listen returns once the events of this containerd arrive.
func (r *recorder) listen(ctx context.Context, client *containerd.Client) error {
	ch, _ := client.Subscribe(context.WithoutCancel(ctx)) // ends with the client
	go func() {
		for e := range ch {
			if e.Event == nil {
				continue
			}
			if v, err := typeurl.UnmarshalAny(e.Event); err == nil {
				r.add(v)
			}
		}
	}()
	r.mu.Lock()
	before := r.ready
	r.mu.Unlock()
	return harness.Poll(ctx, stepBound, func(ctx context.Context) error {
		if err := client.EventService().Publish(ctx, "/crash/ready", &events.ContainerDelete{ID: "ready"}); err != nil {
			return err
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.ready == before {
			return errors.New("no event arrives")
		}
		return nil
	})
}

func (r *recorder) add(event any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch e := event.(type) {
	case *events.ContainerDelete:
		if e.GetID() == "ready" {
			r.ready++
		}
	case *events.TaskCreate:
		r.all = append(r.all, "create")
	case *events.TaskStart:
		r.all = append(r.all, "start")
	case *events.TaskExit:
		if e.GetID() == r.task {
			r.all, r.codes = append(r.all, "exit"), append(r.codes, e.GetExitStatus())
		}
	case *events.TaskDelete:
		if e.GetID() == "" || e.GetID() == r.task {
			r.all = append(r.all, "delete")
		}
	}
}

// take forgets what has been seen and answers it.
func (r *recorder) take() (all []string, codes []uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all, codes, r.all, r.codes = r.all, r.codes, nil, nil
	return all, codes
}

// wait waits until all that must be told has been.
func (r *recorder) wait(ctx context.Context, must []string) error {
	return harness.Poll(ctx, stepBound, func(context.Context) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, e := range must {
			if !slices.Contains(r.all, e) {
				return fmt.Errorf("no event %s; they are %v", e, r.all)
			}
		}
		return nil
	})
}

// inOrder checks that each event came once, in the order of a life.
func inOrder(all []string) error {
	order := []string{"create", "start", "exit", "delete"}
	last := -1
	for _, e := range all {
		at := slices.Index(order, e)
		if at <= last {
			return fmt.Errorf("events came as %v", all)
		}
		last = at
	}
	return nil
}
