package network

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
)

// DetachMoved is Detach for a VM that runs elsewhere under the same addresses. A namespace that got them back would
// speak for the VM: reports of multicast groups draw its MAC to this node, and the kernel answers a segment of an open
// connection with a reset. So the interfaces stay down and bare until the program that made them takes them away. May
// be called from any state, before and after a Detach too.
func DetachMoved(ctx context.Context, netnsPath string, links []Link) error {
	s, err := lockedSession(ctx, netnsPath)
	if errdefs.IsNotFound(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("leave network: %w", err)
	}
	defer s.close()
	return s.detachMoved(ctx, links)
}

func (s *session) detachMoved(ctx context.Context, links []Link) error {
	err := s.deleteTaps(ctx, links)
	for _, l := range links {
		err = errors.Join(err, s.takeDown(ctx, l))
	}
	if err != nil {
		return fmt.Errorf("leave network: %w", err)
	}
	return nil
}

// takeDown takes the link down before its ingress opens.
func (s *session) takeDown(ctx context.Context, link Link) error {
	l, err := s.link(link.Interface)
	if err != nil {
		return ignoreMissing(err)
	}
	if l.Attrs().Index != link.Found.Index {
		return nil // another one of that name
	}
	if taken, err := s.takenOver(link, l); err != nil || taken {
		return err
	}
	err = s.step(ctx, "set down", link.Interface, func() error { return s.nl.LinkSetDown(l) })
	if err != nil {
		return err // what stands now is silent
	}
	return errors.Join(
		s.disableIPv6(ctx, link.Interface),
		s.flush(ctx, l),
		s.step(ctx, "remove ingress qdisc from", link.Interface, func() error { return s.unredirect(l) }))
}
