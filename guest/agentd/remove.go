package agentd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	agentv1 "godwit.dev/godwit/api/agent/lean"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// removedMax is how many ids of removed containers are kept: a call that is repeated comes sooner
// than so many others.
const removedMax = 1024

// RemoveContainer implements agentv1.AgentService.
func (s *Service) RemoveContainer(ctx context.Context,
	r *agentv1.RemoveContainerRequest) (*agentv1.RemoveContainerResponse, error) {
	if err := checkID("container", r.Container); err != nil {
		return nil, err
	}
	c := s.beginRemoval(r.Container)
	if c == nil {
		return nil, fmt.Errorf("remove container %s: %w", r.Container, errdefs.ErrNotFound)
	}
	ctx, cancel := context.WithTimeout(ctx, endWait)
	defer cancel()
	if err := s.remove(ctx, c); err != nil {
		return nil, fmt.Errorf("remove container %s: %w", c.id, err)
	}
	return &agentv1.RemoveContainerResponse{}, nil
}

// beginRemoval finds a container, in which nothing starts any more. One that is not there does not come: its
// AddContainer may be on its way, for a host that has given it up.
func (s *Service) beginRemoval(id string) *container {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.containers[id]
	if c != nil {
		c.leaving = true
	} else {
		s.noteRemoved(id)
	}
	return c
}

// noteRemoved keeps the id of a container that is gone for good; s.mu is held.
func (s *Service) noteRemoved(id string) {
	if slices.Contains(s.removed, id) {
		return
	}
	s.removed = append(s.removed, id)
	s.removed = s.removed[max(0, len(s.removed)-removedMax):]
}

// remove does not begin while a process of the container starts: it would come too late to be killed.
func (s *Service) remove(ctx context.Context, c *container) error {
	if err := c.cgroup.signalAll(unix.SIGKILL); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for _, busy := range s.startsIn(c) {
		select {
		case <-busy:
		case <-ctx.Done():
			return fmt.Errorf("wait for a process that starts: %w: %w", ctx.Err(), errdefs.ErrUnavailable)
		}
	}
	if err := c.turn.Take(ctx); err != nil {
		return fmt.Errorf("wait for another call: %w: %w", err, errdefs.ErrUnavailable)
	}
	defer c.turn.Give()
	o := c.order
	if o == nil {
		o = c.left
	}
	if o != nil {
		if err := s.unmake(ctx, c, o); err != nil {
			return err
		}
	}
	for _, p := range s.processesIn(c) {
		select {
		case <-p.done:
		case <-ctx.Done():
			return fmt.Errorf("wait for process %q: %w: %w", p.id, ctx.Err(), errdefs.ErrUnavailable)
		}
		p.forget()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.processes, func(_ string, p *process) bool { return p.box == c })
	delete(s.containers, c.id)
	s.noteRemoved(c.id)
	return nil
}

// startsIn are closed when the starts of processes that are under way in a container are over. They are ended.
func (s *Service) startsIn(c *container) (list []chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, st := range s.starting {
		if st.box == c {
			s.endStart(id)
			list = append(list, st.over)
		}
	}
	return list
}

// processesIn are those of a container that were started and not removed.
func (s *Service) processesIn(c *container) (list []*process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.processes {
		if p.box == c {
			list = append(list, p)
		}
	}
	return list
}

// unmake takes everything of a container away, however far it was made. It may be repeated.
func (s *Service) unmake(ctx context.Context, c *container, o *order) error {
	if err := s.endProcesses(ctx, c); err != nil {
		return err
	}
	c.closeKept()
	c.filter = nil
	if err := c.root.unmount(); err != nil {
		return err
	}
	if c.id == "" {
		return nil
	}
	if err := s.releaseDisks(ctx, c, o); err != nil {
		return err
	}
	for _, dir := range []string{c.root.dir, s.scratch(c.id)} {
		if err := removeTree(dir); err != nil {
			return fmt.Errorf("remove directory of container %s: %w", c.id, err)
		}
	}
	return c.cgroup.remove()
}

// endProcesses ends what a container's processes are, also its init that waits.
func (s *Service) endProcesses(ctx context.Context, c *container) error {
	if c.waiting != nil {
		if err := s.abandon(c.waiting, c.init, nil); err != nil {
			return err
		}
		c.waiting = nil
	}
	c.init = nil
	if c.id == "" {
		return nil
	}
	return c.cgroup.end(ctx)
}

// releaseDisks waits until no disk is in use that only this container has.
func (s *Service) releaseDisks(ctx context.Context, c *container, o *order) error {
	for _, d := range o.disks() {
		if s.othersUse(c, d.Serial) {
			continue
		}
		if err := released(ctx, d.Serial); err != nil {
			return err
		}
	}
	return nil
}

// othersUse reports whether another container uses a disk. From now on c does not.
func (s *Service) othersUse(c *container, serial string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.disks = slices.DeleteFunc(c.disks, func(have string) bool { return have == serial })
	for _, other := range s.containers {
		if slices.Contains(other.disks, serial) {
			return true
		}
	}
	return false
}
