package vmmtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/vmm"
)

// maxState is what device state may take: with RAM in it, it would be far larger.
const maxState = 4 << 20

func saveNeedsPause(ctx context.Context, b *bench) error {
	v, err := b.start(ctx, nil)
	if err != nil {
		return err
	}
	if err := v.Resume(ctx); err != nil {
		return err
	}
	state, err := v.file("state", 0)
	if err != nil {
		return err
	}
	if err := v.SaveState(ctx, state); !errdefs.IsFailedPrecondition(err) {
		return fmt.Errorf("save of a running VM: got %v, want FailedPrecondition", err)
	}
	_, err = v.guest.await(ctx, func(tick) bool { return true })
	return err
}

func saveAndResume(ctx context.Context, b *bench) error {
	v, err := b.boot(ctx, nil)
	if err != nil {
		return err
	}
	// A save may be wanted again in the same pause, and in another one.
	for range 2 {
		if err := v.Pause(ctx); err != nil {
			return err
		}
		for range 2 {
			if _, err := v.save(ctx); err != nil {
				return err
			}
		}
		if err := b.still(ctx, v); err != nil {
			return err
		}
		if err := goesOn(ctx, v); err != nil {
			return err
		}
	}
	return nil
}

// save gives the state, ready to be read.
func (v *vm) save(ctx context.Context) (*os.File, error) {
	state, err := v.file("state", 0)
	if err != nil {
		return nil, err
	}
	if err := v.SaveState(ctx, state); err != nil {
		return nil, err
	}
	size, err := state.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	if size == 0 || size > maxState {
		return nil, fmt.Errorf("state has %d bytes", size)
	}
	_, err = state.Seek(0, io.SeekStart)
	return state, err
}

// saved starts a VM, stops it at once, and saves it. It has to run first: some VMMs make
// the devices then.
func (b *bench) saved(ctx context.Context) (*vm, *os.File, error) {
	v, err := b.start(ctx, nil)
	if err != nil {
		return nil, nil, err
	}
	if err := errors.Join(v.Resume(ctx), v.Pause(ctx)); err != nil {
		return nil, nil, err
	}
	state, err := v.save(ctx)
	return v, state, err
}

func loadNeedsIncoming(ctx context.Context, b *bench) error {
	v, state, err := b.saved(ctx)
	if err != nil {
		return err
	}
	if err := v.LoadState(ctx, state); !errdefs.IsFailedPrecondition(err) {
		return fmt.Errorf("load into a VM not started as incoming: got %v, want FailedPrecondition", err)
	}
	w, err := b.start(ctx, incoming)
	if err != nil {
		return err
	}
	if err := w.Resume(ctx); !errdefs.IsFailedPrecondition(err) {
		return fmt.Errorf("resume of an incoming VM: got %v, want FailedPrecondition", err)
	}
	return nil
}

func incoming(v *vm) error {
	v.cfg.Incoming = true
	v.cfg.Kernel, v.cfg.Initrd, v.cfg.Cmdline = "", "", ""
	return nil
}

func loadGarbage(ctx context.Context, b *bench) error {
	_, saved, err := b.saved(ctx)
	if err != nil {
		return err
	}
	good, err := io.ReadAll(saved)
	if err != nil {
		return err
	}
	for name, bad := range map[string][]byte{
		"empty": nil, "zeroes": make([]byte, 4096), "half": good[:len(good)/2],
	} {
		v, err := b.start(ctx, incoming)
		if err != nil {
			return err
		}
		state, err := v.file("state", 0)
		if err != nil {
			return err
		}
		if _, err := state.Write(bad); err != nil {
			return err
		}
		if _, err := state.Seek(0, io.SeekStart); err != nil {
			return err
		}
		if err := v.LoadState(ctx, state); err == nil || ctx.Err() != nil {
			return fmt.Errorf("%s state: got %v, want an error in time", name, err)
		}
		if err := v.Kill(ctx); err != nil {
			return err
		}
	}
	return nil
}

func restore(ctx context.Context, b *bench) error {
	withNIC := func(v *vm) error {
		nic, err := v.addNIC(b)
		v.cfg.NICs = []vmm.NIC{nic}
		return err
	}
	v, err := b.boot(ctx, withNIC)
	if err != nil {
		return err
	}
	w, at, err := b.move(ctx, v, func(w *vm) error {
		if err := w.enter(b); err != nil {
			return err
		}
		return withNIC(w)
	})
	if err != nil {
		return err
	}
	if err := isIn(w.Process().PID, w.ns); err != nil {
		return err
	}
	if err := b.still(ctx, w); err != nil {
		return err
	}
	if w.guest.last().N > 0 {
		return errors.New("restored VM runs before it is resumed")
	}
	if err := w.Resume(ctx); err != nil {
		return err
	}
	if err := continues(ctx, w, at); err != nil {
		return err
	}
	return w.writesDisk(ctx)
}

// enter puts the VM into a network namespace of its own.
func (v *vm) enter(b *bench) (err error) {
	if v.ns, err = b.env.NetNS(); err != nil {
		return err
	}
	v.files = append(v.files, v.ns)
	v.cfg.NetNS = pathOf(v.ns)
	return nil
}

// move saves v and restores it in another directory, with other sockets, disk and tap;
// what v had is to be found no more.
func (b *bench) move(ctx context.Context, v *vm, change func(*vm) error) (*vm, tick, error) {
	if err := v.Pause(ctx); err != nil {
		return nil, tick{}, err
	}
	state, err := v.save(ctx)
	if err != nil {
		return nil, tick{}, err
	}
	driver := b.env.Destination
	if driver == nil {
		driver = b.env.Driver
	}
	w, err := b.startWith(ctx, driver, func(w *vm) error {
		if err := errors.Join(incoming(w), copyFile(w.cfg.RAM, v.cfg.RAM)); err != nil {
			return err
		}
		for i, disk := range v.cfg.Disks[:min(1, len(v.cfg.Disks))] { // a template may have none
			if err := copyFile(w.cfg.Disks[i].File, disk.File); err != nil {
				return err
			}
		}
		if change == nil {
			return nil
		}
		return change(w)
	})
	if err != nil {
		return nil, tick{}, err
	}
	if err := v.Kill(ctx); err != nil {
		return nil, tick{}, err
	}
	// Its last lines may lie in the console yet.
	v.cfg.Console.Close()
	select {
	case <-v.guest.ended:
	case <-ctx.Done():
		return nil, tick{}, fmt.Errorf("console of a killed VM stays open: %w", ctx.Err())
	}
	if err := os.Rename(v.cfg.Dir, v.cfg.Dir+".gone"); err != nil {
		return nil, tick{}, err
	}
	return w, v.guest.last(), w.LoadState(ctx, state)
}

// copyFile copies what is not a hole.
func copyFile(to, from *os.File) error {
	return extents(from, func(off, length int64) error {
		if huge(to) {
			return store(to, from, off, length)
		}
		_, err := io.Copy(io.NewOffsetWriter(to, off), io.NewSectionReader(from, off, length))
		return err
	})
}

// continues tells whether the guest goes on where it was: the line that it was about to
// say may have been cut, none may be missing.
func continues(ctx context.Context, w *vm, at tick) error {
	if _, err := w.guest.await(ctx, func(t tick) bool { return t.N > at.N+2 }); err != nil {
		return err
	}
	if first := w.guest.first(); first.Boot != at.Boot || first.N <= at.N || first.N > at.N+2 {
		return fmt.Errorf("guest was at %v and goes on at %v", at, first)
	}
	return nil
}

// writesDisk tells whether the guest's next lines reach the disk of this VM.
func (v *vm) writesDisk(ctx context.Context) error {
	from := v.guest.last()
	_, err := v.guest.await(ctx, func(t tick) bool {
		block := make([]byte, 512)
		if _, err := v.cfg.Disks[0].File.ReadAt(block, 0); err != nil {
			return false
		}
		line, _, _ := bytes.Cut(block, []byte("\n"))
		on, ok := parseTick(string(line))
		return ok && on.Boot == from.Boot && on.N > from.N
	})
	if err != nil {
		return fmt.Errorf("disk: %w", err)
	}
	return nil
}
