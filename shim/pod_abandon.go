package shim

import (
	"context"
	"fmt"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
)

// memberBound is how long Create and Start of a container may take: as long as a kubelet waits for them. Who calls with
// a shorter time has that.
const memberBound = 2 * time.Minute

// abandoned reports whether the container's Create was given up.
func (m *member) abandoned() bool {
	m.t.vm.mu.Lock()
	defer m.t.vm.mu.Unlock()
	return m.abandon == nil
}

// giveUpCreate ends the Create that is under way; false says that none is. vm.mu is held.
func (m *member) giveUpCreate() bool {
	if m.t.state != TaskCreating {
		return false
	}
	if m.abandon != nil {
		m.abandon()
		m.abandon = nil
	}
	return true
}

// abandonCreate ends the Create of a container whose client has given it up: it calls Delete then. It returns when that
// Create is over.
func (s *Service) abandonCreate(ctx context.Context, r *taskapi.DeleteRequest) {
	s.mu.Lock()
	t := s.tasks[r.GetID()]
	s.mu.Unlock()
	if t == nil || t.member == nil || r.GetExecID() != "" {
		return
	}
	t.vm.mu.Lock()
	creating := t.member.giveUpCreate()
	t.vm.mu.Unlock()
	if !creating {
		return
	}
	select {
	case <-t.created:
	case <-ctx.Done():
	}
}

// abandonCreations ends the Creates of containers that are under way, and answers their tasks.
func (p *pod) abandonCreations() (all []*Task) {
	p.vm.mu.Lock()
	defer p.vm.mu.Unlock()
	for _, t := range p.vm.tasks {
		if t.member != nil && t.member.giveUpCreate() {
			all = append(all, t)
		}
	}
	return all
}

// awaitCreations returns when no container is being created any more: what a Create takes back it writes into the
// journal, which is about to go. The VM has ended.
func (p *pod) awaitCreations(ctx context.Context) error {
	for _, t := range p.abandonCreations() {
		select {
		case <-t.created:
		case <-ctx.Done():
			return fmt.Errorf("container %s is still being created: %w: %w", t.id, errdefs.ErrUnavailable, ctx.Err())
		}
	}
	return p.removals.await(ctx)
}
