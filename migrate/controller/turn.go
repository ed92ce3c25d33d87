package controller

import (
	"context"
	"fmt"
)

// turn is had by one call at a time, which may ask the store while it has it.
type turn chan struct{}

func newTurn() turn { return make(turn, 1) }

func (t turn) take(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for a count of the records: %w", ctx.Err())
	}
}

func (t turn) leave() { <-t }
