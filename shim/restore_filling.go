package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/internal/retry"
	"godwit.dev/godwit/shim/events"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/snapshot/store"
	"godwit.dev/godwit/snapshot/track"
	"godwit.dev/godwit/snapshot/worker"
)

// filling is RAM that comes while the VM runs: one run of it, under one shim.
type filling struct {
	journal.Postcopy
	vm     *VM
	cancel context.CancelFunc
	waits  chan struct{}  // closed once RAM waits for its pages: its VMM is there
	here   chan struct{}  // closed once all pages are there
	over   chan struct{}  // closed when RAM is whole, or no worker brings it any more
	idle   chan time.Time // when it had wanted nothing for a moment
	came   sync.Once
	meets  sync.Once
	login  store.Config // with the login and the keys of the last worker; of fill alone

	mu          sync.Mutex
	done, total uint64
	waiting     string // for what it waits; empty: for nothing
}

// incomplete reports whether pages are still to come.
func (f *filling) incomplete() bool {
	select {
	case <-f.here:
		return false
	case <-f.over:
		return false
	default:
		return true
	}
}

// text says how far it is, for people.
func (f *filling) text() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	text := fmt.Sprintf("lazy, %d of %d MiB", f.done>>20, (f.total+1<<20-1)>>20)
	if f.waiting != "" {
		text += ", waits: " + f.waiting
	}
	return text
}

func (f *filling) note(done, total uint64, waiting string) {
	vm := f.vm
	f.mu.Lock()
	before := f.waiting
	if f.waiting = waiting; total > 0 {
		f.done, f.total = done, total
	}
	f.mu.Unlock()
	switch {
	case waiting != "" && before == "":
		vm.log.Warn("the VM waits for its RAM", "snapshot", f.Digest, "reason", waiting)
		vm.notify(events.WaitsTopic)
	case waiting == "" && before != "":
		vm.log.Info("RAM comes again", "snapshot", f.Digest)
	}
}

// await returns once RAM waits for its pages.
func (f *filling) await(ctx context.Context) error {
	select {
	case <-f.waits:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// noteWaiting says that RAM waits for its pages.
func (f *filling) noteWaiting() { f.meets.Do(func() { close(f.waits) }) }

// fill has workers bring RAM, one after the other if they die, and reports whether it is whole.
func (f *filling) fill(ctx context.Context) bool {
	vm := f.vm
	begun, pause := time.Now(), retry.Backoff{Min: fillPause, Max: longestFill}
	for {
		err := f.fillOnce(ctx)
		if errors.Is(err, track.ErrRemapped) && !vm.spec().HasAgent() {
			if err = f.abandon(); err == nil {
				return true
			}
		}
		if err == nil || vm.journal.Load().Postcopy == nil { // the worker may have died after its last order
			vm.log.Info("RAM is whole", "snapshot", f.Digest, "ms", time.Since(begun).Milliseconds())
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		f.note(0, 0, err.Error())
		pause.Wait(ctx)
	}
}

func (f *filling) fillOnce(ctx context.Context) error {
	vm := f.vm
	j, cfg := vm.journal.Load(), vm.host.Config
	files := &openFiles{}
	defer files.close()
	ram, err := files.open(j.RAM, os.O_RDONLY)
	if err != nil {
		return err
	}
	if f.left(j, ram) {
		return f.complete(ctx, ram)
	}
	at, err := f.store(ctx)
	if err != nil {
		return err
	}
	job := worker.LazyJob{
		Store: at, Keys: worker.KeysOf(cfg), Digest: digest.Digest(f.Digest), Space: ramSpace,
		Memory: int64(cfg.Worker.Memory), Concurrency: cfg.Worker.Concurrency,
		RAM:   func(ctx context.Context) (*worker.WaitingRAM, error) { return f.missing(ctx, ram) },
		Whole: func(ctx context.Context) error { return f.complete(ctx, ram) },
	}
	// What was noted of pages that are there already is lost with a worker: all are read again.
	if table, err := files.open(tableFile(j), os.O_CREATE|os.O_RDWR|os.O_TRUNC); err == nil {
		job.Table = worker.Open(table)
	}
	ctx, stop := f.untilReset(ctx, ram)
	defer stop()
	err = vm.host.Snapshots(j.Cgroup).LazyFill(ctx, job, func(p worker.Progress) {
		if p.Settled {
			f.noteIdle()
			return
		}
		f.note(p.Done, p.Total, p.Waiting)
	})
	if cause := context.Cause(ctx); errors.Is(cause, track.ErrRemapped) {
		return cause
	}
	return err
}

// store says how to reach the snapshot. While nothing answers, the login of before counts.
func (f *filling) store(ctx context.Context) (store.Config, error) {
	soon, cancel := context.WithTimeout(ctx, fillLogin)
	defer cancel()
	at, err := f.vm.host.storeOf(soon, f.Repository)
	switch {
	case err == nil:
		f.login = at
	case record.Transient(err) && ctx.Err() == nil:
		f.vm.log.Warn("the login of the registry is not known: the one of before is taken", "snapshot", f.Digest,
			"error", err)
		at.Login, at.Keys, err = f.login.Login, f.login.Keys, nil
	}
	return at, err
}

// missing answers the RAM that waits, as soon as it does.
func (f *filling) missing(ctx context.Context, ram *os.File) (*worker.WaitingRAM, error) {
	vm := f.vm
	if err := f.await(ctx); err != nil {
		return nil, err
	}
	fault, regions, err := vm.host.Lazy.Open(*vm.journal.Load().Process, ram)
	return &worker.WaitingRAM{Regions: regions, Fault: fault}, err
}

// complete ends the wait for RAM that is all there, in a pause as short as that of a tracker that
// is armed. A Start that is under way comes first. Until this returns pages are brought on.
func (f *filling) complete(ctx context.Context, ram *os.File) error {
	vm := f.vm
	f.came.Do(func() { close(f.here) }) // a Start that still waits does so for its guest
	vm.mu.Lock()
	started := vm.owner.startOver
	vm.mu.Unlock()
	if started != nil { // else the shim of that one died
		select {
		case <-started:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	for ; ctx.Err() == nil; retry.Sleep(ctx, resumeRetry) {
		err := f.completeOnce(ctx, ram)
		if err == nil {
			return nil
		}
		vm.log.Warn("end the fill of RAM: try again", "error", err)
	}
	return context.Cause(ctx)
}

// completeOnce writes first that the notes of what was written do not count: a shim that dies in the
// pause leaves none that can be trusted.
func (f *filling) completeOnce(ctx context.Context, ram *os.File) error {
	vm := f.vm
	vm.postcopy.halting.Lock()
	defer vm.postcopy.halting.Unlock()
	vm.mu.Lock()
	state, machine := vm.state, vm.machine
	vm.mu.Unlock()
	if state != Running && state != Paused {
		return fmt.Errorf("VM %s is %s: %w", vm.id, state, errdefs.ErrFailedPrecondition)
	}
	j := vm.journal.Load()
	err := vm.write(func(j *journal.Journal) {
		j.Armed = false
		if j.Postcopy != nil {
			p := *j.Postcopy
			p.Whole, j.Postcopy = true, &p
		}
	})
	if err != nil {
		return err
	}
	begun := time.Now()
	goOn := func() error {
		if state == Paused {
			return nil
		}
		return f.resumeMachine(machine.Resume)
	}
	bound, cancel := context.WithTimeout(ctx, guestBound)
	defer cancel()
	if err := machine.Pause(bound); err != nil { // a paused one, too: it may obey a resume that was given up
		return errors.Join(err, goOn())
	}
	armed := track.ErrRemapped
	if !f.left(j, ram) {
		if armed = vm.host.Lazy.Whole(*j.Process, ram); armed != nil {
			err = vm.tracking.release()
		}
	}
	if armed != nil {
		vm.log.Warn("RAM is not tracked from the wake on: the next snapshot compares all pages", "reason", armed)
	}
	if err = errors.Join(err, goOn()); err != nil {
		return err
	}
	vm.log.Info("no page of RAM is missing any more", "pause_ms", time.Since(begun).Milliseconds())
	return vm.write(func(j *journal.Journal) { j.Postcopy, j.Armed = nil, armed == nil })
}

// left reports whether a shim has died as it ended the wait: RAM is whole, no page is waited for, and nothing is noted.
func (f *filling) left(j *journal.Journal, ram *os.File) bool {
	if j.Postcopy == nil || !j.Postcopy.Whole {
		return false
	}
	fault, _, err := f.vm.host.Lazy.Open(*j.Process, ram)
	if err == nil {
		err = fault.Close()
	}
	return errors.Is(err, track.ErrRemapped)
}

// resumeMachine tries until the VM runs, or is gone: a client that asks for it finds a task that runs.
func (f *filling) resumeMachine(resume func(context.Context) error) error {
	vm := f.vm
	for {
		ctx, cancel := context.WithTimeout(vm.life, guestBound)
		err := resume(ctx)
		cancel()
		if err == nil || vm.life.Err() != nil || vm.vmmGone() {
			return err
		}
		vm.log.Error("go on after the fill of RAM: try again", "error", err)
		retry.Sleep(vm.life, resumeRetry)
	}
}
