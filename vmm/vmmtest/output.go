package vmmtest

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Reader is the host's end of the agent's channel.
type Reader interface {
	// Hold has nothing taken from the channel until Release.
	Hold(ctx context.Context) error
	Release()
	// Say writes to the guest as much as the channel takes.
	Say() error
}

// outputStill is how long a VM that stands still is looked at for what moves in it all the same.
const outputStill = 2 * time.Second

// HeldOutput tells whether the RAM of a VM stays as it is after its state was saved. Its guest has written more to the
// agent's channel than the host has taken, and the host writes. After Release the RAM must change: else the VMM held
// nothing.
func HeldOutput(ctx context.Context, env Env, open func(ctx context.Context, socket string) (Reader, error)) error {
	return onBench(ctx, env, func(ctx context.Context, b *bench) error {
		v, err := b.boot(ctx, func(v *vm) error { v.cfg.Cmdline += " suite=port"; return nil })
		if err != nil {
			return err
		}
		r, err := open(ctx, v.cfg.Agent)
		if err != nil {
			return err
		}
		if err := r.Hold(ctx); err != nil {
			return err
		}
		at := v.guest.last()
		if _, err := v.guest.await(ctx, func(t tick) bool { return t.N > at.N+20 }); err != nil { // its port fills
			return err
		}
		if err := v.Pause(ctx); err != nil {
			return err
		}
		if _, err := v.save(ctx); err != nil {
			return err
		}
		return heldOutput(v, r)
	})
}

func heldOutput(v *vm, r Reader) error {
	saved, err := v.ramHash()
	if err != nil {
		return err
	}
	if err := r.Say(); err != nil {
		return err
	}
	time.Sleep(outputStill)
	later, err := v.ramHash()
	switch {
	case err != nil:
		return err
	case later != saved:
		return errors.New("RAM changes after the state was saved")
	}
	r.Release()
	for end := time.Now().Add(outputStill); time.Now().Before(end); {
		if later, err = v.ramHash(); err != nil || later != saved {
			return err
		}
	}
	return fmt.Errorf("RAM is the same %s after the channel flows again: the VMM held nothing of the guest's", outputStill)
}
