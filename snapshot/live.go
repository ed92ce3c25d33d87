package snapshot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"godwit.dev/godwit/snapshot/format"
)

// Live is a VM that runs when Push begins.
type Live interface {
	// Prepare does what the pause needs and the guest has to run for, such as asking it. What
	// is written meanwhile is looked at before Pause.
	Prepare(ctx context.Context) error
	// Pause returns when the VM stands still.
	Pause(ctx context.Context) error
	// Save returns when Source.State holds the device state of the paused VM, with what of
	// it goes into the config.
	Save(ctx context.Context) (resume json.RawMessage, err error)
}

// Tracker tells which pages of RAM were written: package track has them.
type Tracker interface {
	// Next ends an interval, calls written for what was written in it, and answers whether
	// that is all. Last is set where the VM stands still.
	Next(last bool, written func(offset, end int64)) (known bool, err error)
	// Between reports whether Next knows before the last one.
	Between() bool
}

// Pass is one look at a VM, for people.
type Pass struct {
	Looked uint64  `json:"lookedBytes"`
	Sent   uint64  `json:"sentBytes"` // that were new or had changed
	Left   uint64  `json:"leftBytes"` // that keep changing
	MS     float64 `json:"ms"`
}

// Passes before the pause: at most so many, and none any more when the rest does not
// shrink to less than so many tenths of the rest before.
const (
	mostPasses = 8
	shrinking  = 8
	// briefPass is over so fast that another one would not find much: of a VM that nobody
	// tracks a pass looks at everything.
	briefPass = time.Second
)

// What a pause costs, about: before the last pass, and for each page in it that one core
// looks at.
const (
	pauseFixed   = 12 * time.Millisecond
	pausePerPage = 3 * time.Microsecond
)

// run looks at pages while the VM runs, in passes, until the rest is expected to fit the
// budget of the pause or does not shrink any more; then the VM is paused, and a last pass
// makes what came of them exact. What goes before the pause takes a while, and passes over
// what was written meanwhile follow it.
func (p *passes) run() error {
	near, err := p.approach()
	if err != nil {
		return err
	}
	if err := p.prepare(); err != nil {
		return err
	}
	if near && p.between() {
		if _, err := p.approach(); err != nil {
			return err
		}
	}
	return p.stand()
}

func (p *passes) prepare() error {
	if err := p.live.Prepare(p.ctx); err != nil {
		return fmt.Errorf("prepare the pause: %w", err)
	}
	return p.prepareDisks()
}

// approach makes passes, and reports whether what is left fits the pause; what does not shrink
// does not.
func (p *passes) approach() (near bool, err error) {
	if p.budget <= 0 {
		return false, nil
	}
	var before uint64 // pages of the rest
	var done passed
	var took time.Duration
	if p.sample != nil && p.tracker == nil {
		if rest, known := p.sample(); known && p.enough(rest, 0, p.budget) {
			return true, nil // every page is compared in the pause anyway
		}
	}
	for n := len(p.made); n < p.most; n++ {
		if n > 0 && !p.between() {
			if took < briefPass || n > 1 && p.enough(done.changed, before, p.budget) {
				return true, nil
			}
			before = done.changed
		}
		known, err := p.next(false)
		if err != nil {
			return false, err
		}
		if n > 0 && known {
			rest := p.due()
			if p.enough(rest, before, p.aim) {
				return p.cost(rest) <= p.budget, nil
			}
			before = rest
		}
		begun := time.Now()
		if done, err = p.one(n, !known); err != nil {
			return false, err
		}
		if n > 0 && known { // pages that are new nobody has counted
			before = max(before, p.ram().asked)
		}
		took = time.Since(begun)
		p.noted(done, took)
	}
	return false, nil
}

// one is the n-th pass while the VM runs.
func (p *passes) one(n int, whole bool) (passed, error) {
	if p.before != nil {
		p.before(n)
	}
	done, err := p.pass(pass{whole: whole})
	if err == nil {
		err = p.behind()
	}
	return done, err
}

// between reports whether the tracker knows what was written while the VM runs on.
func (p *passes) between() bool {
	return p.tracker != nil && p.lost == nil && p.tracker.Between()
}

func (p *passes) enough(rest, before uint64, aim time.Duration) bool {
	return p.cost(rest) <= aim || before > 0 && rest*10 > before*shrinking
}

// looking is what the pause costs, about, for looking at so many pages.
func (p *passes) looking(rest uint64) time.Duration {
	return pauseFixed + time.Duration(rest)*pausePerPage/time.Duration(len(p.lookers))
}

func (p *passes) noted(done passed, took time.Duration) {
	p.made = append(p.made, Pass{
		Looked: done.looked * format.PageSize, Sent: done.changed * format.PageSize, Left: done.left * format.PageSize,
		MS: float64(took) / float64(time.Millisecond),
	})
}

// next asks which pages were written. A tracker that fails is not asked again: every page
// is looked at then.
func (p *passes) next(last bool) (known bool, err error) {
	if p.tracker == nil || p.lost != nil {
		return false, p.ctx.Err()
	}
	known, err = p.tracker.Next(last, p.ram().written)
	if err != nil {
		p.lost = err
		return false, p.ctx.Err()
	}
	return known, p.ctx.Err()
}

// untracked is why the tracker is not asked any more.
func (p *passes) untracked() string {
	if p.lost == nil {
		return ""
	}
	return p.lost.Error()
}

// ram is the space that is tracked.
func (p *passes) ram() *area {
	for _, s := range p.spaces {
		if s.Disk == "" {
			return s
		}
	}
	return &area{}
}

// due counts the pages that have to be looked at in the pause, as far as it is known now.
func (p *passes) due() (n uint64) {
	for _, s := range p.spaces {
		for _, b := range s.blocks {
			if b != nil {
				both := b.due.or(&b.left)
				n += uint64(both.count())
			}
		}
	}
	return n
}

// stand has the VM paused and its state saved, and looks at what is left. The VMM saves alone: who
// scans its page table keeps its threads from starting, and what they write has been written then,
// so that one question to the tracker, the last, is exact.
func (p *passes) stand() error {
	if err := p.live.Pause(p.ctx); err != nil {
		return fmt.Errorf("pause: %w", err)
	}
	begun := time.Now()
	if err := p.save(); err != nil {
		return err
	}
	known, err := p.next(true)
	if err != nil {
		return err
	}
	done, err := p.pass(pass{whole: !known, last: true})
	if err != nil {
		return err
	}
	disks, err := p.cloneDisks()
	if err != nil {
		return err
	}
	done.looked, done.changed, done.inside = done.looked+disks.looked, done.changed+disks.changed, done.inside+disks.inside
	p.inside = done.inside
	p.noted(done, time.Since(begun))
	p.over()
	return p.lookBehind()
}

// save has the device state saved. Where no tracker knows what was written, it is found out
// meanwhile where there is data.
func (p *passes) save() error {
	var g errgroup.Group
	if !p.between() {
		g.Go(p.survey)
	}
	resume, err := p.live.Save(p.ctx)
	if err != nil {
		err = fmt.Errorf("save state: %w", err)
	}
	p.resume = resume
	return errors.Join(err, g.Wait())
}

// survey finds out where RAM has data, which takes as long as what is resident. Who punches a
// hole afterwards changes the file's times, and who makes a page the number of its pages.
func (p *passes) survey() (err error) {
	s := p.ram()
	if s.File == nil {
		return nil
	}
	if s.stamp, err = stampOf(s.File); err != nil || !s.stamp.settled {
		return err
	}
	p.surveyed = true
	return s.look(p.gone)
}
