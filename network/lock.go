package network

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// A namespace that somebody else is changing is asked for that often, and for so long.
const (
	lockInterval = 10 * time.Millisecond
	lockTimeout  = 10 * time.Second
)

// lock has this session alone change the wiring of its namespace, until unlock: a Detach of the VM
// before would undo what an Attach has half done, whose taps are not yet on the way of a frame. The
// lock is the kernel's, on the namespace's own inode (flock(2)), and ends with its program.
// Unavailable if it cannot be had in time, as where that program stands still.
func (s *session) lock(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	tick := time.NewTicker(lockInterval)
	defer tick.Stop()
	for {
		switch err := unix.Flock(int(s.ns.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
		case err == nil:
			return nil
		case errors.Is(err, unix.EWOULDBLOCK), errors.Is(err, unix.EINTR):
		default:
			return fmt.Errorf("lock network namespace: %w", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("lock network namespace: another VM's is being attached or detached there: %w: %w", ctx.Err(),
				errdefs.ErrUnavailable)
		}
	}
}

// unlock may be called without a lock.
func (s *session) unlock() { _ = unix.Flock(int(s.ns.Fd()), unix.LOCK_UN) }

// lockedSession opens a session that is alone; closing it ends that.
func lockedSession(ctx context.Context, path string) (*session, error) {
	s, err := openSession(path)
	if err != nil {
		return nil, err
	}
	if err := s.lock(ctx); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}
