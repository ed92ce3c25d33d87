package snapshot

import (
	"runtime"
	"time"

	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/precopy"
)

// prepare says how the passes are made.
func (s *sender) prepare() {
	s.pre = precopy.New(s.src.Spaces, s.sizes, precopy.Options{
		Copy: s, Live: &saving{s.o.Live, s}, Tracker: s.o.Tracker,
		Budget: s.o.Budget, Aim: min(s.o.Budget, sendAim), Most: sendPasses, Sends: true,
	})
	s.sent = precopy.NewPages[sentPage](s.pre.Areas)
	for range runtime.GOMAXPROCS(0) {
		l := newLane(s)
		s.lanes = append(s.lanes, l)
		s.pre.Work(l)
	}
	s.interval = time.Now()
}

func (s *sender) close() {
	for _, l := range s.lanes {
		l.coder.Close()
	}
	s.pre.Close()
}

// Begin implements precopy.Copy: a page is in one frame between two barriers.
func (s *sender) Begin(scope precopy.Scope) error {
	since := time.Since(s.interval)
	s.interval = time.Now()
	s.note(func(p *Progress) {
		p.Pass++
		p.Left, p.Expected = scope.Rest*format.PageSize, float64(scope.Expected)/float64(time.Millisecond)
		p.Dirty = uint64(float64(p.Left) / max(since.Seconds(), 1e-3))
		p.Done, p.Total = 0, p.Left
		p.Step = "send pages"
		if scope.Last {
			p.Step = "send last pages"
		}
	})
	return s.barrier()
}

// End implements precopy.Copy: a pass lasts until the destination has what it sent.
func (s *sender) End(scope precopy.Scope) error {
	if !scope.Last {
		return s.reach()
	}
	s.captured = time.Now()
	return nil
}

// Gone implements precopy.Copy: the destination hears of pages that were sent and are holes now.
func (s *sender) Gone(a *precopy.Area, block int, pages *precopy.Mask) error {
	sent := s.sent.Known(a, block)
	if sent == nil {
		return nil
	}
	var runs [][2]uint64
	first := uint64(block) * precopy.BlockPages
	_ = pages.Runs(func(from, to int) error {
		for i := from; i < to; i++ {
			if sent[i].there {
				runs = addRun(runs, first+uint64(i))
			}
		}
		return nil
	})
	s.sent.Clear(a, block, pages)
	if len(runs) == 0 {
		return nil
	}
	return s.out.Zeros(s.ctx, a.Number, runs)
}

func addRun(runs [][2]uint64, page uint64) [][2]uint64 {
	if n := len(runs); n > 0 && runs[n-1][0]+runs[n-1][1] == page {
		runs[n-1][1]++
		return runs
	}
	return append(runs, [2]uint64{page, 1})
}

// resident counts the bytes that are not zero.
func (s *sender) resident() (n uint64) {
	s.sent.Each(func(_, _ int, pages *[precopy.BlockPages]sentPage) {
		for i := range pages {
			if pages[i].there {
				n += format.PageSize
			}
		}
	})
	return n
}

func (s *sender) note(change func(*Progress)) {
	s.mu.Lock()
	change(&s.now)
	s.now.Moved = s.out.Moved()
	now := s.now
	s.mu.Unlock()
	s.o.Progress(now)
}
