package shim

import (
	"context"
	"log/slog"
	"os"
	"sync"

	"godwit.dev/godwit/internal/failpoint"
	"godwit.dev/godwit/shim/tracking"
	"godwit.dev/godwit/snapshot/stream"
	"godwit.dev/godwit/snapshot/track"
	"godwit.dev/godwit/snapshot/worker"
)

// chooseTracking answers how pages of RAM that change are found on this node.
func (h *Host) chooseTracking(ctx context.Context) tracking.Choice {
	if h.Tracking == nil {
		return tracking.Choice{Way: track.Content}
	}
	return h.Tracking(ctx)
}

// trackedVM is the VM whose RAM is tracked.
type trackedVM interface {
	chooseTracking(ctx context.Context) tracking.Choice // what its node would have
}

// ramTracking knows how changed pages of RAM are found, and opens what finds them.
type ramTracking struct {
	of      trackedVM
	journal *vmJournal
	log     *slog.Logger

	mu  sync.Mutex
	way string // empty: that is not known yet
}

// known answers the way that was chosen last.
func (r *ramTracking) known() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.way
}

// currentChoice is chooseTracking for a VM that runs: it may have been started without a userfaultfd.
func (r *ramTracking) currentChoice(ctx context.Context) tracking.Choice {
	c := r.of.chooseTracking(ctx)
	if p := r.journal.Load().Process; c.Way == track.UFFD && (p == nil || p.Userfault == 0) {
		c = tracking.Choice{Way: track.Content, Reason: "the VMM was started without a userfaultfd"}
	}
	r.mu.Lock()
	r.way = string(c.Way)
	r.mu.Unlock()
	return c
}

// openFiles opens what the worker needs to find changed pages. Whatever is missing costs
// a longer pause and no more; the answer says why.
func (r *ramTracking) openFiles(ctx context.Context, ram *os.File, files *openFiles) (*worker.Tracking, string) {
	c := r.currentChoice(ctx)
	if c.Way == track.Content {
		return nil, c.Reason
	}
	p := r.journal.Load().Process
	regions, err := track.Regions(p.PID, ram)
	if err != nil {
		return nil, err.Error()
	}
	f, err := track.Open(c.Way, p.PID, p.Userfault)
	if err != nil {
		return nil, err.Error()
	}
	t := &worker.Tracking{Way: c.Way, Regions: regions}
	for from, to := range map[*os.File]**worker.File{f.Pagemap: &t.Pagemap, f.Fault: &t.Fault, f.Clear: &t.Clear,
		f.Vmstat: &t.Vmstat} {
		if from != nil {
			files.all = append(files.all, from)
			*to = worker.Open(from)
		}
	}
	return t, c.Reason
}

// startTracking has the kernel note what the VM writes from its first instruction on: up to here RAM is
// what the page table of its restore says, so that the next capture has only that to look at.
// Without it that one compares every page, and is no less exact.
// It is called when the VMM has mapped RAM, and has touched none of it.
func (s *starting) startTracking(ctx context.Context) error {
	vm, j := s.vm, s.vm.journal.Load()
	if j.Postcopy != nil {
		return s.registerRAM()
	}
	moves := vm.origin.arrival != nil
	if moves && s.written == nil || vm.tracking.currentChoice(ctx).Way != track.UFFD {
		return nil
	}
	ram, err := os.Open(j.RAM)
	if err == nil {
		defer ram.Close()
		err = failpoint.Record("notes", "Arm", func() error {
			if moves {
				return track.ArmBut(j.Process.PID, j.Process.Userfault, ram, spansOf(s.written))
			}
			return track.Arm(j.Process.PID, j.Process.Userfault, ram)
		})
	}
	if s.armed = err == nil; err != nil {
		vm.log.Info("RAM is not tracked from the wake on: the next snapshot compares all pages", "reason", err)
	}
	return nil
}

func spansOf(w *stream.Written) (all []track.Span) {
	for _, p := range w.Parts {
		all = append(all, track.Span(p))
	}
	return all
}

// stop has the VMM run on untracked. It may never have been tracked.
func (r *ramTracking) stop() {
	if err := r.release(); err != nil {
		r.log.Warn("stop tracking RAM", "error", err)
	}
}

// release is stop for a caller that has to know.
func (r *ramTracking) release() error {
	j := r.journal.Load()
	if j.Process == nil || j.Process.Userfault == 0 {
		return nil
	}
	if alive, err := vmmOf(j).Alive(); !alive || err != nil {
		return err
	}
	ram, err := os.Open(j.RAM)
	if err != nil {
		return err
	}
	defer ram.Close()
	return track.Release(j.Process.PID, j.Process.Userfault, ram)
}

// open opens what finds changed pages of RAM, and says which way that is and why not a
// better one.
func (r *ramTracking) open(ctx context.Context, ram *os.File, files *openFiles) (t *worker.Tracking, way, why string) {
	t, why = r.openFiles(ctx, ram, files)
	if t != nil {
		return t, string(t.Way), why
	}
	if why != "" {
		r.log.Info("RAM is not tracked: all pages are compared in the pause", "reason", why)
	}
	return nil, string(track.Content), why
}
