package precopy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
)

// Passes while the VM runs end when the rest does not shrink to less than so many tenths of the
// rest before.
const shrinking = 8

// briefPass is over so fast that another one would not find much: of a VM that is not
// tracked a pass looks at everything.
const briefPass = time.Second

// AtOnce has the VM paused at once: no pass before the pause would make it shorter.
func (p *Precopy) AtOnce() { p.o.Budget = 0 }

// Run looks at pages while the VM runs, in passes. It ends the passes when the rest is expected
// to fit the budget of the pause, or does not shrink any more. Then the VM is paused, and a last
// pass makes what came of them exact. What Live.Prepare does takes a while. Passes over what was
// written meanwhile follow it. Of a VM that stands still Run is one pass over all.
func (p *Precopy) Run(ctx context.Context) (Result, error) {
	if p.o.Live == nil {
		if _, err := p.Pass(ctx, Scope{Last: true, whole: true}); err != nil {
			return Result{}, err
		}
		return Result{}, p.o.Copy.End(Scope{Last: true})
	}
	near, err := p.approach(ctx)
	if err != nil {
		return Result{}, err
	}
	if err := p.prepare(ctx); err != nil {
		return Result{}, err
	}
	if near && p.Tracks() {
		if _, err := p.approach(ctx); err != nil {
			return Result{}, err
		}
	}
	resume, err := p.pause(ctx)
	if err != nil {
		return Result{}, err
	}
	out := Result{Resume: resume, Passes: p.passes, Inside: p.inside, Disks: p.inPause()}
	if p.untracked != nil {
		out.Untracked = p.untracked.Error()
	}
	return out, nil
}

func (p *Precopy) prepare(ctx context.Context) error {
	if err := p.o.Live.Prepare(ctx); err != nil {
		return fmt.Errorf("prepare the pause: %w", err)
	}
	return p.prepareDisks(ctx)
}

// approach makes passes, and reports whether what is left fits the pause; what does not shrink
// does not.
func (p *Precopy) approach(ctx context.Context) (near bool, err error) {
	if p.o.Budget <= 0 {
		return false, nil
	}
	var before uint64 // pages of the rest
	var done Count
	var took time.Duration
	for n := len(p.passes); n < p.o.Most; n++ {
		if n > 0 && !p.Tracks() {
			if took < briefPass || n > 1 && p.enough(done.Changed, before, p.o.Budget) {
				return true, nil
			}
			before = done.Changed
		}
		known, err := p.next(ctx, false)
		if err != nil {
			return false, err
		}
		if n > 0 && known {
			rest := p.due()
			if p.enough(rest, before, p.o.Aim) {
				return p.expected <= p.o.Budget, nil
			}
			before = rest
		}
		begun := time.Now()
		if done, err = p.while(ctx, Scope{Number: n, whole: !known}); err != nil {
			return false, err
		}
		if n > 0 && known { // pages that are new were not counted
			before = max(before, p.RAM().asked)
		}
		took = time.Since(begun)
	}
	return false, nil
}

// while is a pass while the VM runs.
func (p *Precopy) while(ctx context.Context, scope Scope) (Count, error) {
	begun := time.Now()
	done, err := p.Pass(ctx, scope)
	if err == nil {
		err = p.o.Copy.End(scope)
	}
	if err == nil {
		p.note(done, time.Since(begun))
	}
	return done, err
}

// Again is one more pass while the VM runs, over pages that were forgotten.
func (p *Precopy) Again(ctx context.Context) error {
	_, err := p.while(ctx, Scope{})
	return err
}

// Passes counts those so far.
func (p *Precopy) Passes() int { return len(p.passes) }

func (p *Precopy) note(done Count, took time.Duration) {
	p.passes = append(p.passes, Pass{
		Looked: done.Looked * pageSize, Sent: done.Changed * pageSize, Left: done.Left * pageSize,
		MS: float64(took) / float64(time.Millisecond),
	})
}

// Tracks reports whether the tracker knows what was written while the VM runs on.
func (p *Precopy) Tracks() bool {
	return p.o.Tracker != nil && p.untracked == nil && p.o.Tracker.Between()
}

// next asks which pages were written. A tracker that fails is not asked again: every page
// is looked at then.
func (p *Precopy) next(ctx context.Context, last bool) (known bool, err error) {
	p.takeNotes(last)
	if p.o.Tracker == nil || p.untracked != nil {
		return false, ctx.Err()
	}
	known, err = p.o.Tracker.Next(last, p.RAM().written)
	if err != nil {
		p.untracked = err
		return false, ctx.Err()
	}
	return known, ctx.Err()
}

// pause has the VM paused and its state saved, and looks at what is left. The VMM saves alone,
// since a scan of its page table keeps its threads from starting. What they write has been
// written then. So one question to the tracker, the last, is exact.
func (p *Precopy) pause(ctx context.Context) (json.RawMessage, error) {
	if err := p.o.Live.Pause(ctx); err != nil {
		return nil, fmt.Errorf("pause: %w", err)
	}
	begun := time.Now()
	resume, err := p.save(ctx)
	if err != nil {
		return nil, err
	}
	known, err := p.next(ctx, true)
	if err != nil {
		return nil, err
	}
	done, err := p.Pass(ctx, Scope{Last: true, whole: !known})
	if err != nil {
		return nil, err
	}
	disks, err := p.cloneDisks(ctx)
	if err != nil {
		return nil, err
	}
	p.inside = done.Inside + disks.Inside
	p.note(Count{Looked: done.Looked + disks.Looked, Changed: done.Changed + disks.Changed, Left: done.Left},
		time.Since(begun))
	if err := p.o.Copy.End(Scope{Last: true}); err != nil {
		return nil, err
	}
	return resume, p.readClones(ctx)
}

// save has the device state saved. Where no tracker knows what was written, it is found out
// meanwhile where there is data.
func (p *Precopy) save(ctx context.Context) (json.RawMessage, error) {
	var g errgroup.Group
	if !p.Tracks() {
		g.Go(p.survey)
	}
	resume, err := p.o.Live.Save(ctx)
	if err != nil {
		err = fmt.Errorf("save state: %w", err)
	}
	return resume, errors.Join(err, g.Wait())
}
