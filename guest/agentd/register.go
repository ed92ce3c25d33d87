package agentd

import (
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
)

// enter finds a container of the pod, or begins one, and takes its turn.
func (s *Service) enter(ctx context.Context, id string, o *order) (*container, error) {
	for {
		c, err := s.register(id, o)
		if err != nil {
			return nil, err
		}
		if err := c.turn.Take(ctx); err != nil {
			return nil, fmt.Errorf("add container %s: %w", id, err)
		}
		s.mu.Lock()
		current := s.containers[id] == c // else another call has failed to make it meanwhile
		s.mu.Unlock()
		if current {
			return c, nil
		}
		c.turn.Give()
	}
}

// register puts a container into the list, with what it is going to use.
func (s *Service) register(id string, o *order) (*container, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pod := s.pod.Load()
	switch c := s.containers[id]; {
	case pod == nil:
		return nil, fmt.Errorf("add container %s: the guest has no pod: %w", id, errdefs.ErrFailedPrecondition)
	case pod.pause.exited():
		return nil, fmt.Errorf("add container %s: the pod has ended: %w", id, errdefs.ErrFailedPrecondition)
	case c != nil && c.leaving:
		return nil, fmt.Errorf("add container %s: it is being removed: %w", id, errdefs.ErrFailedPrecondition)
	case c != nil:
		return c, nil
	case slices.Contains(s.removed, id):
		return nil, fmt.Errorf("add container %s: it was removed, and no id is used twice: %w", id,
			errdefs.ErrFailedPrecondition)
	}
	c := newContainer(id, pod.cgroup.below(id), s.mountDir(id))
	for _, m := range o.volumes {
		if v := s.volumes[m.Volume]; v == nil || v.leaving {
			return nil, fmt.Errorf("add container %s: volume %q: %w", id, m.Volume, errdefs.ErrNotFound)
		}
		c.volumes = append(c.volumes, m.Volume)
	}
	for _, d := range o.disks() {
		c.disks = append(c.disks, d.Serial)
	}
	s.containers[id] = c
	return c, nil
}

// drop takes a container of a pod out of the list.
func (s *Service) drop(c *container) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.id != "" {
		delete(s.containers, c.id)
	}
}
