// Package steps runs an operation of several steps, each of which can be taken back: on an
// error what the steps before it have made is undone, the last first.
package steps

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

// Undo is what a multi-step operation has made so far.
type Undo struct {
	steps []undoStep
}

type undoStep struct {
	name string
	fn   func(context.Context) error
}

// Add notes how to take back what was just made.
func (u *Undo) Add(name string, fn func(context.Context) error) {
	u.steps = append(u.steps, undoStep{name, fn})
}

// Join has u take back what another operation, which has succeeded, has made.
func (u *Undo) Join(made *Undo) { u.steps = append(u.steps, made.steps...) }

// Run takes everything back in reverse order. It goes on over errors, and over the end
// of ctx, within a time of its own.
func (u *Undo) Run(ctx context.Context, bound time.Duration) error {
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

// Step of a multi-step operation.
type Step struct {
	name string
	fn   func(context.Context, *Undo) error
}

// New is one step. What it makes it adds to the Undo.
func New(name string, fn func(context.Context, *Undo) error) Step { return Step{name, fn} }

// Together makes one step of some that need nothing of each other, and that undo alone: what they have
// made is taken back by the steps before them.
func Together(steps ...Step) Step {
	names := make([]string, len(steps))
	for i, s := range steps {
		names[i] = s.name
	}
	return Step{strings.Join(names, ", "), func(ctx context.Context, _ *Undo) error {
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

// Run runs them in order; on an error everything made is taken back.
func Run(ctx context.Context, u *Undo, bound time.Duration, steps []Step) error {
	for _, s := range steps {
		err, begun := ctx.Err(), time.Now()
		if err == nil {
			err = s.fn(ctx, u)
		}
		slog.Debug("step", "name", s.name, "took", time.Since(begun), "failed", err != nil)
		if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", s.name, err), u.Run(ctx, bound))
		}
	}
	return nil
}
