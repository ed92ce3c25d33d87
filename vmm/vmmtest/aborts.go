package vmmtest

import (
	"context"
	"fmt"
	"time"
)

// Of an abort: how many are tried, and how much later the next one comes than the one before.
const (
	abortRounds = 24
	abortStep   = 500 * time.Microsecond
)

// Aborts tells whether a VM goes on whose pause or save is called off. It does so at one moment
// after the other, from before the pause to after the save.
func Aborts(ctx context.Context, env Env) error { return onBench(ctx, env, aborts) }

func aborts(ctx context.Context, b *bench) error {
	v, err := b.boot(ctx, nil)
	if err != nil {
		return err
	}
	for i := range abortRounds {
		short, cancel := context.WithTimeout(ctx, time.Duration(i)*abortStep)
		called := v.Pause(short)
		if called == nil {
			_, called = v.save(short)
		}
		cancel()
		at := v.guest.last()
		if err := v.Resume(ctx); err != nil {
			return fmt.Errorf("abort %d (%v): %w", i, called, err)
		}
		if _, err := v.guest.await(ctx, func(t tick) bool { return t.Boot == at.Boot && t.N > at.N }); err != nil {
			return fmt.Errorf("abort %d (%v): the guest stands still: %w", i, called, err)
		}
	}
	return nil
}
