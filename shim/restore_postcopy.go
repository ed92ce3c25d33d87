package shim

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"
)

// Times of a fill: the bounds between two workers of it, if they fail. Variables for the tests.
var (
	fillPause   = 200 * time.Millisecond
	longestFill = 5 * time.Second
	fillLogin   = 5 * time.Second // that a fill waits for its login: the VM may stand still meanwhile
)

// emptyBound is how long the end of a VM waits for that of its fill.
const emptyBound = 5 * time.Second

// postcopy is what is known of RAM that comes while the VM runs.
type postcopy struct {
	vm      *VM        // that the RAM is of
	halting sync.Mutex // held while the VM is halted, or goes on, as long as its RAM comes

	mu   sync.Mutex // guards fill; the VM's lock may be held where it is taken
	fill *filling   // nil: RAM is whole
}

func (p *postcopy) set(f *filling) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fill = f
}

// start brings RAM from when it waits on, until it is whole or the VM ends. Its snapshot is opened at
// once.
func (p *postcopy) start() *filling {
	ctx, cancel := context.WithCancel(p.vm.life)
	f := &filling{
		vm: p.vm, Postcopy: *p.vm.journal.Load().Postcopy, cancel: cancel, waits: make(chan struct{}),
		here: make(chan struct{}), over: make(chan struct{}),
		idle: make(chan time.Time, 1), total: p.vm.spec().Memory,
	}
	p.set(f)
	go func() { // of the process: an adopted VM has no other word of it yet
		if f.await(ctx) == nil && p.vm.vmmEnds(ctx) {
			cancel()
		}
	}()
	go func() {
		defer close(f.over)
		defer cancel()
		if f.fill(ctx) {
			p.set(nil)
		}
	}()
	return f
}

// stop ends the fill of a VM that is about to be killed: the kernel may wait for a page in a worker of its own (KVM's),
// which no signal reaches. It lets go of the VMM only when no process can bring the page.
func (p *postcopy) stop(ctx context.Context) {
	f := p.filling()
	if f == nil {
		return
	}
	f.cancel()
	ctx, cancel := context.WithTimeout(ctx, emptyBound)
	defer cancel()
	select {
	case <-f.over:
	case <-ctx.Done():
		p.vm.log.Warn("the fill of RAM does not end: the VMM is killed while it goes on")
	}
}

// resume goes on with the fill of a shim that died, if there was one.
func (p *postcopy) resume() {
	if p.vm.journal.Load().Postcopy != nil {
		p.start().noteWaiting()
	}
}

// lockPause keeps Pause, Resume and the end of a fill apart.
func (p *postcopy) lockPause() (over func()) {
	if p.filling() == nil {
		return func() {}
	}
	p.halting.Lock()
	return p.halting.Unlock
}

// await waits until RAM is whole: half of it is no VM.
func (p *postcopy) await(ctx context.Context, bound time.Duration) error {
	f := p.filling()
	if f == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	p.vm.log.Info("an operation waits until RAM is whole", "progress", f.text())
	select {
	case <-f.over:
		if p.filling() != nil {
			return fmt.Errorf("VM %s has ended before its RAM had come: %w", p.vm.id, errdefs.ErrAborted)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("VM %s: wait until its RAM has come from snapshot %s (%s): %w", p.vm.id, f.Digest,
			f.text(), ctx.Err())
	}
}

// filling is nil where RAM is whole.
func (p *postcopy) filling() *filling {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fill
}
