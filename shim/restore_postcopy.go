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

	"godwit.dev/godwit/internal/retry"
	"godwit.dev/godwit/shim/events"
	"godwit.dev/godwit/snapshot/worker"
)

// Bounds between two workers of one fill, if they fail. Variables for the tests.
var (
	fillPause   = 200 * time.Millisecond
	longestFill = 5 * time.Second
)

// emptyBound is how long the end of a VM waits for that of its fill.
const emptyBound = 5 * time.Second

// postcopy is RAM that comes while the VM runs; the VM's lock guards fill.
type postcopy struct {
	fill    *filling   // nil: RAM is whole
	halting sync.Mutex // held while the VM is halted, or goes on, as long as its RAM comes
}

// filling is RAM that comes while the VM runs.
type filling struct {
	Filling
	cancel context.CancelFunc
	waits  chan struct{}  // closed once RAM waits for its pages: its VMM is there
	here   chan struct{}  // closed once all pages are there
	over   chan struct{}  // closed when RAM is whole, or nobody brings it any more
	calm   chan time.Time // when it had wanted nothing for a moment
	came   sync.Once
	meets  sync.Once

	mu          sync.Mutex
	done, total uint64
	waiting     string // for what it waits; empty: for nothing
}

// filling is nil where RAM is whole.
func (vm *VM) filling() *filling {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	return vm.postcopy.fill
}

// lacks reports whether pages are still to come.
func (f *filling) lacks() bool {
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

func (vm *VM) noteFill(f *filling, done, total uint64, waiting string) {
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

// fillOn brings RAM from when it waits on, until it is whole or the VM ends. Its snapshot is opened at
// once.
func (vm *VM) fillOn() *filling {
	ctx, cancel := context.WithCancel(vm.life)
	f := &filling{
		Filling: *vm.noted().Filling, cancel: cancel, waits: make(chan struct{}), here: make(chan struct{}), over: make(chan struct{}),
		calm: make(chan time.Time, 1), total: vm.spec().Memory,
	}
	vm.mu.Lock()
	vm.postcopy.fill = f
	vm.mu.Unlock()
	go func() { // of the process: an adopted VM has no other word of it yet
		if f.await(ctx) == nil && vm.vmmEnds(ctx) {
			cancel()
		}
	}()
	go func() {
		defer close(f.over)
		defer cancel()
		if vm.fill(ctx, f) {
			vm.mu.Lock()
			vm.postcopy.fill = nil
			vm.mu.Unlock()
		}
	}()
	return f
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

// meet says that RAM waits for its pages.
func (f *filling) meet() { f.meets.Do(func() { close(f.waits) }) }

// stopPostcopy ends the fill of a VM that is about to be killed: the kernel may wait for a page in a
// worker of its own (KVM's), which no signal reaches, and lets go of the VMM only when nobody can bring it.
func (vm *VM) stopPostcopy(ctx context.Context) {
	f := vm.filling()
	if f == nil {
		return
	}
	f.cancel()
	ctx, cancel := context.WithTimeout(ctx, emptyBound)
	defer cancel()
	select {
	case <-f.over:
	case <-ctx.Done():
		vm.log.Warn("the fill of RAM does not end: the VMM is killed beside it")
	}
}

// fillAgain goes on with the fill of a shim that died, if there was one.
func (vm *VM) fillAgain() {
	if vm.noted().Filling != nil {
		vm.fillOn().meet()
	}
}

// fill has workers bring RAM, one behind the other if they die, and reports whether it is whole.
func (vm *VM) fill(ctx context.Context, f *filling) bool {
	begun, pause := time.Now(), retry.Backoff{Min: fillPause, Max: longestFill}
	for {
		err := vm.fillOnce(ctx, f)
		if err == nil || vm.noted().Filling == nil { // the worker may have died behind its last order
			vm.log.Info("RAM is whole", "snapshot", f.Digest, "ms", time.Since(begun).Milliseconds())
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		vm.noteFill(f, 0, 0, err.Error())
		pause.Wait(ctx)
	}
}

func (vm *VM) fillOnce(ctx context.Context, f *filling) error {
	j, cfg := vm.noted(), vm.host.Config
	files := &openFiles{}
	defer files.close()
	ram, err := files.open(j.RAM, os.O_RDONLY)
	if err != nil {
		return err
	}
	job := worker.LazyJob{
		Store: storeConfig(cfg, f.Repository), Keys: worker.KeysOf(cfg), Digest: digest.Digest(f.Digest), Space: ramSpace,
		Memory: int64(cfg.Worker.Memory), Concurrency: cfg.Worker.Concurrency,
		RAM:   func(ctx context.Context) (*worker.WaitingRAM, error) { return vm.missing(ctx, f, ram) },
		Whole: func(ctx context.Context) error { return vm.whole(ctx, f, ram) },
	}
	// What was noted of pages that are there already is lost with a worker: all are read again.
	if table, err := files.open(tableFile(j), os.O_CREATE|os.O_RDWR|os.O_TRUNC); err == nil {
		job.Table = worker.Open(table)
	}
	return vm.host.Snapshots(j.Cgroup).LazyFill(ctx, job, func(p worker.Progress) {
		if p.Settled {
			f.settled()
			return
		}
		vm.noteFill(f, p.Done, p.Total, p.Waiting)
	})
}

// missing answers the RAM that waits, as soon as it does.
func (vm *VM) missing(ctx context.Context, f *filling, ram *os.File) (*worker.WaitingRAM, error) {
	if err := f.await(ctx); err != nil {
		return nil, err
	}
	fault, regions, err := vm.host.Lazy.Open(*vm.noted().Process, ram)
	return &worker.WaitingRAM{Regions: regions, Fault: fault}, err
}

// whole ends the wait for RAM that is all there, in a pause as short as that of a tracker that
// is armed. A Start that is under way comes first. Until this returns pages are brought on.
func (vm *VM) whole(ctx context.Context, f *filling, ram *os.File) error {
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
	for ; ctx.Err() == nil; retry.Sleep(ctx, mendPause) {
		err := vm.wholeOnce(ctx, ram)
		if err == nil {
			return nil
		}
		vm.log.Warn("end the fill of RAM: try again", "error", err)
	}
	return context.Cause(ctx)
}

// wholeOnce writes first that the notes of what was written do not count: a shim that dies in the
// pause leaves none that can be trusted.
func (vm *VM) wholeOnce(ctx context.Context, ram *os.File) error {
	vm.postcopy.halting.Lock()
	defer vm.postcopy.halting.Unlock()
	vm.mu.Lock()
	state, machine := vm.state, vm.machine
	vm.mu.Unlock()
	if state != Running && state != Paused {
		return fmt.Errorf("VM %s is %s: %w", vm.id, state, errdefs.ErrFailedPrecondition)
	}
	j := vm.noted()
	err := vm.write(func(j *Journal) { j.Armed = false })
	if err != nil {
		return err
	}
	begun := time.Now()
	goOn := func() error {
		if state == Paused {
			return nil
		}
		return vm.goOnRunning(machine.Resume)
	}
	bound, cancel := context.WithTimeout(ctx, guestBound)
	defer cancel()
	if err := machine.Pause(bound); err != nil { // a paused one, too: it may obey a resume that was given up
		return errors.Join(err, goOn())
	}
	armed := vm.host.Lazy.Whole(*j.Process, ram)
	if armed != nil {
		vm.log.Warn("RAM is not tracked from the wake on: the next snapshot compares all pages", "reason", armed)
		err = vm.unregister()
	}
	if err = errors.Join(err, goOn()); err != nil {
		return err
	}
	vm.log.Info("nobody waits for RAM any more", "pause_ms", time.Since(begun).Milliseconds())
	return vm.write(func(j *Journal) { j.Filling, j.Armed = nil, armed == nil })
}

// goOnRunning tries until the VM runs, or is gone: whoever asks for it finds a task that runs.
func (vm *VM) goOnRunning(resume func(context.Context) error) error {
	for {
		ctx, cancel := context.WithTimeout(vm.life, guestBound)
		err := resume(ctx)
		cancel()
		if err == nil || vm.life.Err() != nil || vm.vmmGone() {
			return err
		}
		vm.log.Error("go on behind the fill of RAM: try again", "error", err)
		retry.Sleep(vm.life, mendPause)
	}
}

// halts keeps Pause, Resume and the end of a fill apart.
func (vm *VM) halts() (over func()) {
	if vm.filling() == nil {
		return func() {}
	}
	vm.postcopy.halting.Lock()
	return vm.postcopy.halting.Unlock
}

// filled waits until RAM is whole: half of it is no VM.
func (vm *VM) filled(ctx context.Context, bound time.Duration) error {
	f := vm.filling()
	if f == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	vm.log.Info("an operation waits until RAM is whole", "progress", f.text())
	select {
	case <-f.over:
		if vm.filling() != nil {
			return fmt.Errorf("VM %s has ended before its RAM had come: %w", vm.id, errdefs.ErrAborted)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("VM %s: wait until its RAM has come from snapshot %s (%s): %w", vm.id, f.Digest, f.text(), ctx.Err())
	}
}
