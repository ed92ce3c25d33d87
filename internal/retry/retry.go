// Package retry paces what is tried again: pauses that end with a context, and that double
// from one try to the next.
package retry

import (
	"context"
	"time"
)

// Sleep waits for d, or until ctx ends: the caller looks at ctx.
func Sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// Backoff is a pause that doubles from Min to Max. The zero value of the rest is ready.
type Backoff struct {
	Min, Max time.Duration
	last     time.Duration
}

// Next answers the pause after one more failure.
func (b *Backoff) Next() time.Duration {
	if b.last = min(2*b.last, b.Max); b.last == 0 {
		b.last = min(b.Min, b.Max)
	}
	return b.last
}

// Wait sleeps for the next pause, or until ctx ends.
func (b *Backoff) Wait(ctx context.Context) { Sleep(ctx, b.Next()) }

// Reset begins with Min again: a try has succeeded.
func (b *Backoff) Reset() { b.last = 0 }

// Longest reports whether the pauses have stopped growing.
func (b *Backoff) Longest() bool { return b.last == b.Max }
