package store

import (
	"context"
	"sync"
	"time"
)

// limiter keeps all transfers of a store together below a number of bytes a second. A
// nil one keeps nothing.
type limiter struct {
	rate float64 // bytes a second
	mu   sync.Mutex
	free time.Time // when what has been let through is paid for
}

func newLimiter(bytesPerSecond int64) *limiter {
	if bytesPerSecond <= 0 {
		return nil
	}
	return &limiter{rate: float64(bytesPerSecond)}
}

// cut bounds a read, so that a wait stays short.
func (l *limiter) cut(p []byte) []byte {
	if l == nil {
		return p
	}
	return p[:min(len(p), max(4<<10, int(l.rate/20)))]
}

// wait pays for n bytes.
func (l *limiter) wait(ctx context.Context, n int) error {
	if l == nil || n <= 0 {
		return nil
	}
	l.mu.Lock()
	now := time.Now()
	if l.free.Before(now) {
		l.free = now
	}
	l.free = l.free.Add(time.Duration(float64(n) / l.rate * float64(time.Second)))
	until := l.free
	l.mu.Unlock()
	t := time.NewTimer(until.Sub(now))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
