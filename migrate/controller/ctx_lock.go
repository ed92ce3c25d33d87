package controller

import (
	"context"
	"fmt"
)

// ctxLock is had by one call at a time, which may ask the store while it holds it.
type ctxLock chan struct{}

func newCtxLock() ctxLock { return make(ctxLock, 1) }

func (t ctxLock) lock(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for a count of the records: %w", ctx.Err())
	}
}

func (t ctxLock) unlock() { <-t }
