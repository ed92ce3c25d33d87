package vmmtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/vmm"
)

func startIsInert(ctx context.Context, b *bench) error {
	v, err := b.start(ctx, nil)
	if err != nil {
		return err
	}
	before, err := v.ramHash()
	if err != nil {
		return err
	}
	if err := b.still(ctx, v); err != nil {
		return err
	}
	after, err := v.ramHash()
	if err != nil {
		return err
	}
	if after != before || v.guest.last().N > 0 {
		return errors.New("VM ran before it was resumed")
	}
	if err := v.Resume(ctx); err != nil {
		return err
	}
	_, err = v.guest.await(ctx, func(tick) bool { return true })
	return err
}

func failedStart(ctx context.Context, b *bench) error {
	over, cancel := context.WithCancel(ctx)
	cancel()
	for name, start := range map[string]func() (*vm, error){
		"two disks in one slot": func() (*vm, error) {
			return b.start(ctx, func(v *vm) error {
				second := v.cfg.Disks[0]
				second.ID = "second"
				v.cfg.Disks = append(v.cfg.Disks, second)
				return nil
			})
		},
		"context is over": func() (*vm, error) { return b.start(over, nil) },
	} {
		if _, err := start(); err == nil {
			return fmt.Errorf("%s: started", name)
		}
		v := b.vms[len(b.vms)-1]
		if err := noSockets(v.cfg.Dir); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// noSockets tells whether a socket lies in dir.
func noSockets(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Type()&os.ModeSocket != 0 {
			return fmt.Errorf("left behind: %s", e.Name())
		}
	}
	return nil
}

func pauseAndResume(ctx context.Context, b *bench) error {
	v, err := b.boot(ctx, nil)
	if err != nil {
		return err
	}
	if err := v.Pause(ctx); err != nil {
		return err
	}
	if err := b.still(ctx, v); err != nil {
		return err
	}
	return goesOn(ctx, v)
}

// goesOn resumes and waits until the same guest counts further.
func goesOn(ctx context.Context, v *vm) error {
	at := v.guest.last()
	if err := v.Resume(ctx); err != nil {
		return err
	}
	now, err := v.guest.await(ctx, func(t tick) bool { return t != at })
	if err != nil {
		return err
	}
	if now.Boot != at.Boot || now.N <= at.N {
		return fmt.Errorf("guest was at %v and goes on at %v", at, now)
	}
	return nil
}

func idempotent(ctx context.Context, b *bench) error {
	v, err := b.start(ctx, nil)
	if err != nil {
		return err
	}
	for i := range 2 {
		if err := v.Resume(ctx); err != nil {
			return fmt.Errorf("resume %d: %w", i+1, err)
		}
	}
	for i := range 2 {
		if err := v.Pause(ctx); err != nil {
			return fmt.Errorf("pause %d: %w", i+1, err)
		}
	}
	return v.sawEvents(ctx, vmm.Resumed, vmm.Paused)
}

// sawEvents waits for one event of each kind, in that order.
func (v *vm) sawEvents(ctx context.Context, kinds ...vmm.EventKind) error {
	for _, kind := range kinds {
		for found := false; !found; {
			select {
			case e, ok := <-v.Events():
				if !ok {
					return fmt.Errorf("events end without %s", kind)
				}
				found = e.Kind == kind
			case <-ctx.Done():
				return fmt.Errorf("no event %s: %w", kind, ctx.Err())
			}
		}
	}
	return nil
}

func kill(ctx context.Context, b *bench) error {
	v, err := b.start(ctx, nil)
	if err != nil {
		return err
	}
	p := v.Process()
	for i := range 2 {
		if err := v.Kill(ctx); err != nil {
			return fmt.Errorf("kill %d: %w", i+1, err)
		}
		if err := v.isGone(p); err != nil {
			return fmt.Errorf("after kill %d: %w", i+1, err)
		}
	}
	if err := v.Resume(ctx); !errors.Is(err, vmm.ErrNotResumed) {
		return fmt.Errorf("resume of a killed VM: got %v, want ErrNotResumed", err)
	}
	if exit := v.Exit(); exit.Clean || exit.Status != 128+int(unix.SIGKILL) || exit.At.IsZero() {
		return fmt.Errorf("exit of a killed VM: %+v", exit)
	}
	return nil
}

// isGone looks at everything that shows a VM on its host.
func (v *vm) isGone(p vmm.Process) error {
	select {
	case <-v.Done():
	default:
		return errors.New("Done is not closed")
	}
	if _, err := os.Stat(filepath.Join("/proc", fmt.Sprint(p.PID))); err == nil {
		return fmt.Errorf("process %d is still there", p.PID)
	}
	if err := noSockets(v.cfg.Dir); err != nil {
		return err
	}
	for {
		select {
		case _, ok := <-v.Events():
			if !ok {
				return nil
			}
		default:
			return errors.New("Events is not closed")
		}
	}
}

func powerOff(ctx context.Context, b *bench) error {
	return ends(ctx, b, "poweroff", vmm.PoweredOff, true)
}

func reset(ctx context.Context, b *bench) error {
	return ends(ctx, b, "reset", vmm.Reset, false)
}

func panicked(ctx context.Context, b *bench) error {
	return ends(ctx, b, "panic", vmm.Panicked, false)
}

// ends boots a guest that ends in that way.
func ends(ctx context.Context, b *bench, way string, kind vmm.EventKind, clean bool) error {
	v, err := b.boot(ctx, func(v *vm) error {
		v.cfg.Cmdline += " suite=" + way
		return nil
	})
	if err != nil {
		return err
	}
	p := v.Process()
	if err := v.sawEvents(ctx, kind); err != nil {
		return err
	}
	select {
	case <-v.Done():
	case <-ctx.Done():
		return fmt.Errorf("process does not end: %w", ctx.Err())
	}
	if exit := v.Exit(); exit.Clean != clean || exit.Reason == "" || clean && exit.Status != 0 {
		return fmt.Errorf("exit: %+v", exit)
	}
	return v.isGone(p)
}

func adopt(ctx context.Context, b *bench) error {
	v, err := b.boot(ctx, nil)
	if err != nil {
		return err
	}
	p := v.Process()
	d, ok := v.Machine.(Detacher)
	if !ok {
		return fmt.Errorf("%T has no Detach", v.Machine)
	}
	if err := d.Detach(); err != nil {
		return err
	}
	adopted, err := b.env.Driver.Adopt(ctx, p)
	if err != nil {
		return err
	}
	v.Machine = adopted
	other := p
	other.StartTime++
	if _, err := b.env.Driver.Adopt(ctx, other); !errdefs.IsNotFound(err) {
		return fmt.Errorf("adopt with another start time: got %v, want NotFound", err)
	}
	if err := v.Pause(ctx); err != nil {
		return err
	}
	if err := b.still(ctx, v); err != nil {
		return err
	}
	if err := goesOn(ctx, v); err != nil {
		return err
	}
	if err := v.Kill(ctx); err != nil {
		return err
	}
	return v.isGone(p)
}

// hang stops the process itself: it takes what is sent and never answers.
func hang(ctx context.Context, b *bench) error {
	v, err := b.start(ctx, nil)
	if err != nil {
		return err
	}
	if err := freeze(ctx, v.Process().PID); err != nil {
		return err
	}
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- v.Pause(short) }()
	select {
	case err = <-done:
	case <-ctx.Done():
		return errors.New("pause of a hanging VMM never returns")
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("pause of a hanging VMM: got %v, want DeadlineExceeded", err)
	}
	return v.Kill(ctx)
}

// freeze stops a process and waits until it has stopped.
func freeze(ctx context.Context, pid int) error {
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		return err
	}
	for {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return err
		}
		if _, state, ok := bytes.Cut(stat, []byte(") ")); ok && state[0] == 'T' {
			return nil
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("process %d does not stop: %w", pid, ctx.Err())
		}
	}
}
