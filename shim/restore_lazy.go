package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/internal/retry"
	"godwit.dev/godwit/shim/steps"
	"godwit.dev/godwit/snapshot/track"
	"godwit.dev/godwit/vmm"
)

// Lazy has a VM run while its RAM comes. Package tracking has the real one.
type Lazy interface {
	// Probe answers why this kernel cannot do it; nil: it can.
	Probe(ctx context.Context) error
	// Expect has who touches a page of RAM wait for it, before the VMM has touched any.
	Expect(p vmm.Process, ram *os.File) error
	// Open opens what brings pages into RAM. The error is track.ErrRemapped once no page is waited for any more.
	Open(p vmm.Process, ram *os.File) (*os.File, []track.Region, error)
	// Whole ends the waiting, of a VM that stands still.
	Whole(p vmm.Process, ram *os.File) error
}

// beginFill has a worker open the snapshot that RAM comes from, while the VMM is started.
func (s *starting) beginFill(_ context.Context, u *steps.Undo) error {
	vm := s.vm
	if vm.journal.Load().Postcopy == nil {
		return nil
	}
	// Of a Start that failed there may be pages.
	ram, err := os.OpenFile(vm.journal.Load().RAM, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if err := errors.Join(track.Empty(ram), ram.Close()); err != nil {
		return fmt.Errorf("restore lazily: %w", err)
	}
	s.filling = vm.postcopy.start()
	u.Add("end the fill", func(ctx context.Context) error { vm.postcopy.stop(ctx); return nil })
	return nil
}

// registerRAM has RAM wait for its pages, and these come from now on: loading the state wants some.
func (s *starting) registerRAM() error {
	vm, j := s.vm, s.vm.journal.Load()
	ram, err := os.OpenFile(j.RAM, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer ram.Close()
	if j.Process.Userfault == 0 {
		return fmt.Errorf("restore lazily: the VMM was started without a userfaultfd, as its log says; set worker.restore "+
			"to eager: %w", errdefs.ErrFailedPrecondition)
	}
	if err := vm.host.Lazy.Expect(*j.Process, ram); err != nil {
		return fmt.Errorf("restore lazily: %w", err)
	}
	s.armed = true
	s.filling.noteWaiting()
	return nil
}

// boundAfterFill is a bound of a Start that does not count while RAM comes: a guest that waits for
// pages is not to blame.
func (s *starting) boundAfterFill(abort func()) func() {
	return func() {
		if f := s.vm.postcopy.filling(); f != nil && f.incomplete() {
			select {
			case <-f.here:
			case <-f.over:
			}
			s.extend(time.Duration(s.vm.host.Config.Timeouts.Boot))
		}
		for left := s.timeLeft(); left > 0 && s.vm.life.Err() == nil; left = s.timeLeft() {
			retry.Sleep(s.vm.life, left)
		}
		abort()
	}
}

// extend gives a bound that waits, and may have fired, at least so much time.
func (s *starting) extend(bound time.Duration) {
	end := time.Now().Add(bound).UnixNano()
	for old := s.until.Load(); old < end && !s.until.CompareAndSwap(old, end); old = s.until.Load() {
	}
}

func (s *starting) timeLeft() time.Duration { return time.Until(time.Unix(0, s.until.Load())) }

// dialUntilFilled is dial that waits for a guest whose pages are late.
func (s *starting) dialUntilFilled(ctx context.Context, dial func(context.Context) (Agent, error)) (Agent, error) {
	for {
		f := s.vm.postcopy.filling()
		late := f != nil && f.incomplete()
		a, err := dial(ctx)
		if err == nil || !late || ctx.Err() != nil || s.vm.vmmGone() {
			return a, err
		}
		s.vm.log.Warn("the guest waits for its RAM", "progress", f.text(), "error", err)
		retry.Sleep(ctx, resumeRetry)
	}
}
