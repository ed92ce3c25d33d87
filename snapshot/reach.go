package snapshot

import (
	"context"
	"time"
)

func (s *sender) barrier() error {
	s.barriers++
	return s.out.Barrier(s.ctx)
}

// reach waits after a pass until the destination has written what was sent. What still lies between both ends when
// the VM stands still is part of its pause: megabytes in the buffers of a connection, where a destination is slower
// than its wire.
func (s *sender) reach() error {
	begun := time.Now()
	if err := s.barrier(); err != nil || !s.answers {
		return err
	}
	for s.reached.Load() < s.barriers {
		select {
		case <-s.news:
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		}
	}
	s.out.Waited(time.Since(begun))
	return nil
}

// noteReached hears what the destination has come to.
func (s *sender) noteReached(barrier uint64) {
	s.reached.Store(barrier)
	select {
	case s.news <- struct{}{}:
	default:
	}
}
