package vmmtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"godwit.dev/godwit/vmm"
)

const (
	pageSize   = 4096
	fillAtOnce = 64 << 10
)

// heldFaults is after how many pages the first one that brings them ends, without a word.
const heldFaults = 3

// RAM has the RAM of a VM come while it runs, page by page.
type RAM interface {
	// Expect has who touches a page wait for it.
	Expect(p vmm.Process, ram *os.File) error
	// Bring answers what brings a page, and what tells of pages that are waited for until its context ends.
	Bring(p vmm.Process, ram *os.File) (put func(offset int64, page []byte) error,
		serve func(ctx context.Context, fault func(offset int64)) error, err error)
	// Whole ends that, of a VM that stands still, and tells which pages are noted as written since Expect.
	Whole(p vmm.Process, ram *os.File) (written map[int64]bool, err error)
}

// Waits tells whether a VM goes on while its RAM comes. One that brings pages takes over from another. All that the VM
// writes is noted from its first instruction on.
func Waits(ctx context.Context, env Env, ram RAM) error {
	return onBench(ctx, env, func(ctx context.Context, b *bench) error { return b.waits(ctx, ram) })
}

// Notes tells whether all that a VM writes is noted from its first instruction on, where its RAM is there. Of ram,
// Expect has the notes taken, and Whole reads them.
func Notes(ctx context.Context, env Env, ram RAM) error {
	return onBench(ctx, env, func(ctx context.Context, b *bench) error { return b.notes(ctx, ram) })
}

func (b *bench) waits(ctx context.Context, ram RAM) error {
	v, err := b.boot(ctx, nil)
	if err != nil {
		return err
	}
	l := &late{ram: ram}
	defer l.close()
	w, at, err := b.move(ctx, v, func(w *vm) error {
		l.vm, l.from = w, w.cfg.RAM
		if w.cfg.RAM, err = w.file("late", int64(w.cfg.Memory)); err != nil {
			return err
		}
		w.cfg.Track, w.cfg.Mapped = vmm.TrackPages, l.expect
		return w.cfg.RAM.Chown(b.env.User, -1)
	})
	if err != nil {
		return err
	}
	if err := w.Resume(ctx); err != nil {
		return err
	}
	if err := continues(ctx, w, at); err != nil {
		return fmt.Errorf("while RAM comes: %w", err)
	}
	if err := w.writesDisk(ctx); err != nil {
		return err
	}
	if err := l.fill(ctx); err != nil {
		return err
	}
	if err := w.Pause(ctx); err != nil {
		return err
	}
	if err := l.noted(); err != nil {
		return err
	}
	at = w.guest.last()
	if err := w.Resume(ctx); err != nil {
		return err
	}
	_, err = w.guest.await(ctx, func(t tick) bool { return t.Boot == at.Boot && t.N > at.N+2 })
	return err
}

func (b *bench) notes(ctx context.Context, ram RAM) error {
	v, err := b.boot(ctx, nil)
	if err != nil {
		return err
	}
	l, told := &late{ram: ram}, 0
	w, at, err := b.move(ctx, v, func(w *vm) error {
		l.vm = w
		if l.from, err = w.file("was", int64(w.cfg.Memory)); err != nil {
			return err
		}
		w.cfg.Track = vmm.TrackWrites
		w.cfg.Mapped = func(context.Context) error { told++; return ram.Expect(w.Process(), w.cfg.RAM) }
		return copyFile(l.from, w.cfg.RAM)
	})
	if err != nil {
		return err
	}
	if told != 1 {
		return fmt.Errorf("RAM was mapped %d times", told)
	}
	if err := w.Resume(ctx); err != nil {
		return err
	}
	if err := continues(ctx, w, at); err != nil {
		return err
	}
	if err := errors.Join(w.writesDisk(ctx), w.Pause(ctx)); err != nil {
		return err
	}
	return l.noted()
}

// late is RAM that comes while its VM runs.
type late struct {
	vm      *vm
	ram     RAM
	from    *os.File // what it is
	stop    context.CancelFunc
	serving sync.WaitGroup

	mu     sync.Mutex
	faults int
	failed error
}

// expect is vmm.Config.Mapped.
func (l *late) expect(context.Context) error {
	if l.stop != nil {
		return errors.New("RAM is mapped twice")
	}
	if err := l.ram.Expect(l.vm.Process(), l.vm.cfg.RAM); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	l.stop = cancel
	l.serving.Go(func() { l.serve(ctx) })
	return nil
}

// serve brings pages: one brings a few, and ends with a page that is waited for. Another one takes over.
func (l *late) serve(ctx context.Context) {
	first, end := context.WithCancel(ctx)
	l.note(l.bring(first, func(offset int64) bool {
		if l.faults++; l.faults == heldFaults {
			end()
		}
		return l.faults < heldFaults
	}))
	if ctx.Err() == nil {
		l.note(l.bring(ctx, func(int64) bool { l.faults++; return true }))
	}
}

func (l *late) bring(ctx context.Context, answers func(int64) bool) error {
	put, serve, err := l.ram.Bring(l.vm.Process(), l.vm.cfg.RAM)
	if err != nil {
		return err
	}
	err = serve(ctx, func(offset int64) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if ctx.Err() == nil && answers(offset) {
			l.failed = errors.Join(l.failed, l.put(put, offset, pageSize))
		}
	})
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

func (l *late) put(put func(int64, []byte) error, offset, length int64) error {
	page := make([]byte, length)
	if _, err := l.from.ReadAt(page, offset); err != nil {
		return err
	}
	return put(offset, page)
}

func (l *late) note(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failed = errors.Join(l.failed, err)
}

// fill brings all the rest, while the VM runs.
func (l *late) fill(ctx context.Context) error {
	put, _, err := l.ram.Bring(l.vm.Process(), l.vm.cfg.RAM)
	if err != nil {
		return err
	}
	err = extents(l.from, func(off, length int64) error {
		for end := off + length; off < end; off += fillAtOnce {
			if err := errors.Join(ctx.Err(), l.put(put, off, min(fillAtOnce, end-off))); err != nil {
				return err
			}
		}
		return nil
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.faults <= heldFaults && err == nil {
		err = fmt.Errorf("%d pages were waited for", l.faults)
	}
	return errors.Join(err, l.failed)
}

// noted tells whether the notes have each page of the VM, which stands still, that is not what it was.
func (l *late) noted() error {
	written, err := l.ram.Whole(l.vm.Process(), l.vm.cfg.RAM)
	if err != nil {
		return err
	}
	all, noted, changed, missed := 0, 0, 0, 0 // what the file does not have is told as written
	was, is := make([]byte, pageSize), make([]byte, pageSize)
	err = extents(l.vm.cfg.RAM, func(off, length int64) error {
		for end := off + length; off < end; off += pageSize {
			_, err := l.from.ReadAt(was, off)
			if _, isErr := l.vm.cfg.RAM.ReadAt(is, off); errors.Join(err, isErr) != nil {
				return errors.Join(err, isErr)
			}
			all++
			if written[off] {
				noted++
			}
			if string(was) == string(is) {
				continue
			}
			if changed++; !written[off] {
				missed++
			}
		}
		return nil
	})
	if err == nil && (changed == 0 || missed > 0 || noted > all/2) {
		err = fmt.Errorf("%d of %d pages have changed, %d are noted, and %d changed ones are not", changed, all, noted,
			missed)
	}
	return err
}

// close ends who brings pages, of a VM that needs none any more or is about to end.
func (l *late) close() {
	if l.stop != nil {
		l.stop()
	}
	l.serving.Wait()
}
