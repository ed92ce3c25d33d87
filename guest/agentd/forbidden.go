package agentd

import (
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// barredMax is how many ids are kept that nothing starts under: each is of a call that its
// client has given up, and no call is on its way for longer than so many others.
const barredMax = 256

// forbidStart sees to it that nothing starts under id from now on. It returns when no Start of it is
// under way. With SIGKILL it does not wait for what such a Start may wait for in its container.
func (s *Service) forbidStart(ctx context.Context, id string, sig unix.Signal) error {
	if s.isInit(id) {
		return fmt.Errorf("kill for good: the container's init has no second start: %w", errdefs.ErrInvalidArgument)
	}
	s.mu.Lock()
	if !slices.Contains(s.barred, id) {
		s.barred = append(s.barred, id)
		s.barred = s.barred[max(0, len(s.barred)-barredMax):]
	}
	busy := s.starting[id].over
	if sig == unix.SIGKILL {
		s.endStart(id)
	}
	s.mu.Unlock()
	if busy == nil {
		return nil
	}
	select {
	case <-busy:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// killable says what ends the process by which p is being started, until done. A start that was given up ends here.
func (s *Service) killable(p *process, by *spawned) (done func(), err error) {
	set := func(kill func()) {
		if st, under := s.starting[p.id]; under {
			st.kill = kill
			s.starting[p.id] = st
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.mayStart(p.id, p.container()); err != nil {
		return nil, err
	}
	set(func() { _ = s.children.signal(by, unix.SIGKILL) })
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		set(nil)
	}, nil
}

// endStart ends what is about to become the process of an id: it may hang in its container, in which the files are not
// the agent's. s.mu is held.
func (s *Service) endStart(id string) {
	if kill := s.starting[id].kill; kill != nil {
		kill()
	}
}

// isInit reports whether the process of an id is what a container, or the pod, begins with.
func (s *Service) isInit(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.containers[id] != nil || id == podID && s.pod.Load() != nil
}

// mayStart refuses an id that was barred, and a container that is being removed; s.mu is held.
func (s *Service) mayStart(id string, c *container) error {
	if c.leaving {
		return fmt.Errorf("start process %q: its container is being removed: %w", id, errdefs.ErrFailedPrecondition)
	}
	if slices.Contains(s.barred, id) {
		return fmt.Errorf("start process %q: it was given up: %w", id, errdefs.ErrAborted)
	}
	return nil
}
