// Package turn has callers come one after the other, also where they ask a store or a disk meanwhile. A mutex guards
// fields alone, and knows no context.
package turn

import "context"

// Turn is had by one caller at a time.
type Turn chan struct{}

// New is a turn that is free.
func New() Turn { return make(Turn, 1) }

// Take waits for the turn. The error is that of ctx: who gets one does not have the turn.
func (t Turn) Take(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Give ends what Take has begun.
func (t Turn) Give() { <-t }
