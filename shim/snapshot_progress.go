package shim

import (
	"sync"
	"time"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/snapshot/worker"
)

// progress of the capture or restore under way. The zero value is usable.
type progress struct {
	mu       sync.Mutex
	now      *machinev1.Progress
	captured time.Time
}

func (p *progress) note(w worker.Progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !w.Captured.IsZero() {
		p.captured = w.Captured
		return
	}
	p.now = &machinev1.Progress{
		Step: w.Step, Done: w.Done, Total: w.Total, Pass: uint32(w.Pass), Left: w.Left, DirtyRate: w.Dirty, Moved: w.Moved,
		ExpectedMs: w.Expected,
	}
}

func (p *progress) get() *machinev1.Progress {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now
}

func (p *progress) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now = nil
}
