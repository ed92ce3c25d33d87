package shim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// undo is what a multi-step operation has made so far.
type undo struct {
	steps []undoStep
}

type undoStep struct {
	name string
	fn   func(context.Context) error
}

func (u *undo) add(name string, fn func(context.Context) error) {
	u.steps = append(u.steps, undoStep{name, fn})
}

// run takes everything back in reverse order. It goes on over errors, and over the end
// of ctx, within a time of its own.
func (u *undo) run(ctx context.Context, bound time.Duration) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), bound)
	defer cancel()
	var errs []error
	for _, s := range slices.Backward(u.steps) {
		if err := s.fn(ctx); err != nil {
			errs = append(errs, fmt.Errorf("undo %s: %w", s.name, err))
		}
	}
	u.steps = nil
	return errors.Join(errs...)
}

// step of a multi-step operation.
type step struct {
	name string
	fn   func(context.Context, *undo) error
}

// together makes one step of some that need nothing of each other, and that undo alone: what they have
// made is taken back by the steps before them.
func together(steps ...step) step {
	names := make([]string, len(steps))
	for i, s := range steps {
		names[i] = s.name
	}
	return step{strings.Join(names, ", "), func(ctx context.Context, _ *undo) error {
		g, ctx := errgroup.WithContext(ctx)
		for _, s := range steps {
			g.Go(func() error {
				if err := s.fn(ctx, nil); err != nil {
					return fmt.Errorf("%s: %w", s.name, err)
				}
				return nil
			})
		}
		return g.Wait()
	}}
}

// runSteps runs them in order; on an error everything made is taken back.
func runSteps(ctx context.Context, u *undo, bound time.Duration, steps []step) error {
	for _, s := range steps {
		err, begun := ctx.Err(), time.Now()
		if err == nil {
			err = s.fn(ctx, u)
		}
		slog.Debug("step", "name", s.name, "took", time.Since(begun), "failed", err != nil)
		if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", s.name, err), u.run(ctx, bound))
		}
	}
	return nil
}
