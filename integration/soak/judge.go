package soak

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/observer"
)

// awaitHealthy waits until all faults are healed, and judges: within a bound every verb has ended, and
// every VM is as it has to be.
func (w *world) awaitHealthy(ctx context.Context, cancelCalls context.CancelFunc) error {
	w.heals.Wait()
	healed := time.Now()
	if err := w.startAll(ctx); err != nil {
		return err
	}
	if !waitFor(&w.calls, settleBound) {
		w.violation("%s after all faults were healed a verb has not ended", settleBound)
		cancelCalls()
		w.calls.Wait()
	}
	w.log("calm: all verbs have ended %.1f s after the last fault", time.Since(healed).Seconds())
	var all sync.WaitGroup
	for _, g := range w.guests {
		all.Go(func() { w.judge(ctx, g, healed.Add(settleBound)) })
	}
	all.Wait()
	w.unique()
	if err := harness.Poll(ctx, settleBound, w.single); err != nil && ctx.Err() == nil {
		w.violation("VMMs and VMs are not the same: %v", err)
	}
	w.blames()
	most := w.shims()
	w.result.change(func() {
		w.result.Rounds++
		w.result.Shims.Files, w.result.Shims.KiB = max(w.result.Shims.Files, most.Files), max(w.result.Shims.KiB, most.KiB)
	})
	w.log("calm: judged %.1f s after the last fault", time.Since(healed).Seconds())
	return ctx.Err()
}

// startAll has every daemon run, and lets VMs come to every node.
func (w *world) startAll(ctx context.Context) error {
	for _, d := range w.daemons {
		if err := harness.Poll(ctx, settleBound, d.up); err != nil {
			return err
		}
	}
	for _, n := range w.Nodes() {
		err := harness.Poll(ctx, settleBound, func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, settleBound/4)
			defer cancel()
			_, err := w.Node(0).RunGodwit(ctx, "uncordon", n.Name)
			return err
		})
		if err != nil {
			w.violation("node %s is not to be had back: %v", n.Name, err)
		}
	}
	return ctx.Err()
}

func waitFor(group *sync.WaitGroup, bound time.Duration) bool {
	done := make(chan struct{})
	go func() { group.Wait(); close(done) }()
	select {
	case <-done:
		return true
	case <-time.After(bound):
		return false
	}
}

// leastJudged is the time that a guest has to be found in order, whatever was waited for before.
const leastJudged = time.Minute

// longJudged is more than a VM needs that stands: who waited longer is told, with the reason.
const longJudged = 20 * time.Second

// judge finds a guest as it has to be until a deadline. One that was ended by the schedule is
// removed.
func (w *world) judge(ctx context.Context, g *guest, deadline time.Time) {
	gone, begun, late := false, time.Now(), error(nil)
	err := harness.Poll(ctx, max(time.Until(deadline), harness.Slow(leastJudged)), func(ctx context.Context) (err error) {
		if gone, err = w.checkGuest(ctx, g); err != nil {
			late = err
			_ = observer.Pause(ctx, time.Second)
		}
		return err
	})
	if err != nil && ctx.Err() == nil {
		w.violation("VM %s (%s): %v", g.name, excused(g), err)
		gone = true // the next rounds judge other VMs
	}
	if took := time.Since(begun); late != nil && took > longJudged {
		w.log("  VM %s stands after %.0f s; before: %v", g.name, took.Seconds(), late)
	}
	if !gone {
		if g.vm() != "" {
			g.excuse("")
			g.set(func() { g.begins = 0 })
			w.result.change(func() { w.result.Checks++ })
		}
		return
	}
	if g.vm() != "" {
		w.result.change(func() { w.result.Lost++ })
	}
	if err := harness.Poll(ctx, settleBound, func(ctx context.Context) error {
		return w.remove(ctx, g)
	}); err != nil && ctx.Err() == nil {
		w.violation("VM %s cannot be removed: %v", g.name, err)
	}
}

func excused(g *guest) string {
	if why := g.excuses(); why != "" {
		return why
	}
	return "nothing was done to it"
}

// checkGuest answers an error as long as a guest is not as it has to be. It says too whether there is to be no VM of
// it.
func (w *world) checkGuest(ctx context.Context, g *guest) (gone bool, err error) {
	all, err := w.look(ctx)
	if err != nil {
		return false, err
	}
	rec := all[g.name]
	if g.pod != nil {
		w.attend(ctx, g, rec)
	}
	if op := rec.GetOperation(); op != nil {
		return false, fmt.Errorf("operation %s is still open, in %s: %s", op.GetId(), op.GetPhase(), op.GetReason())
	}
	if strangers := g.known(); len(strangers) > 0 {
		return false, fmt.Errorf("VMs that nobody ordered are heard under its name: %s", strings.Join(strangers, ", "))
	}
	nonce, why := g.vm(), g.excuses()
	if nonce != "" && g.beginning() {
		w.beginAgain(ctx, g, rec)
	}
	switch {
	case nonce == "": // a run of it may have failed halfway
		return true, nil
	case rec.GetOwner().GetNode() != "":
		if err = w.runs(ctx, g, rec); err == nil && g.pod != nil {
			err = w.podStands(ctx, g, w.node(rec.GetOwner().GetNode()))
		}
	case rec.GetOwner().GetDigest() != "":
		if err = w.sleeps(ctx, g); err == nil && why == putBack { // it may have slept, woken and ended since
			return true, nil
		}
	default:
		err = fmt.Errorf("it is lost: its record says %s", said(rec))
	}
	if err != nil && why != "" && !g.ownerUntouched(rec) && w.sleeps(ctx, g) == nil {
		return true, nil
	}
	return false, err
}

func said(rec *nodev1.Record) string {
	if rec == nil {
		return "nothing: there is none"
	}
	return fmt.Sprintf("owner %q, generation %d, lost %q, kept %v", rec.GetOwner().GetNode()+rec.GetOwner().GetDigest(),
		rec.GetGeneration(), rec.GetLost(), rec.GetKept() != nil)
}

// hearBound is how long a VM that runs may be silent: without KVM all of them share two cores.
var hearBound = harness.Slow(15 * time.Second)

// runs checks that the VM is heard, and that its memory and its disk are its own, and one.
func (w *world) runs(ctx context.Context, g *guest, rec *nodev1.Record) error {
	owner := w.node(rec.GetOwner().GetNode())
	if owner == nil {
		return fmt.Errorf("it is owned by %s", said(rec))
	}
	begun := time.Now()
	err := harness.Poll(ctx, hearBound, func(context.Context) error {
		if last := g.last(); !last.at.After(begun) {
			return fmt.Errorf("node %s owns it, and it is silent since %s, at %d", owner.Name, last.at.Format(time.TimeOnly),
				last.counter)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if p := g.journal(owner).Phase; p != "OWN" {
		return fmt.Errorf("node %s owns it, and its journal says %q", owner.Name, p)
	}
	before := g.last()
	ctx, cancel := context.WithTimeout(ctx, answerBound)
	defer cancel()
	got, err := observer.Ask(ctx, w.Dial, before.from)
	switch {
	case err != nil:
		return err
	case got.Nonce != g.vm():
		return fmt.Errorf("%s answers as another VM, nonce %s", before.from, got.Nonce[:min(8, len(got.Nonce))])
	case !got.FileOK || uint64(got.FileLines)+1 < got.Counter/10 || got.Counter < before.counter:
		return fmt.Errorf("memory and disk differ, or are older than what was heard (%d): %+v", before.counter, got)
	}
	return nil
}

// quiet is how long a VM that does not run is listened for.
const quiet = 2 * time.Second

// sleeps checks that the VM is not heard.
func (w *world) sleeps(ctx context.Context, g *guest) error {
	before := g.last()
	if err := observer.Pause(ctx, quiet); err != nil {
		return err
	}
	if now := g.last(); now.counter != before.counter {
		return fmt.Errorf("it is heard at %d while it must not run", now.counter)
	}
	return nil
}

// unique checks that no two VMs that run have one address.
func (w *world) unique() {
	seen := map[string]string{}
	for _, g := range w.guests {
		last := g.last()
		if g.vm() == "" || time.Since(last.at) > quiet {
			continue
		}
		if other, ok := seen[last.from]; ok {
			w.violation("VMs %s and %s have one address, %s", other, g.name, last.from)
		}
		seen[last.from] = g.name
	}
}

func (w *world) blames() {
	for _, g := range w.guests {
		for _, one := range g.all() {
			for _, wrong := range one.blames() {
				w.violation("%s", wrong)
			}
		}
	}
}

func (w *world) violated() (yes bool) {
	w.result.change(func() { yes = w.result.Violations > 0 })
	return yes
}

// violation notes what must not be, and keeps the programs' logs at the first one.
func (w *world) violation(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	w.log("VIOLATION: %s", text)
	first := false
	w.result.change(func() {
		first = w.result.Violations == 0
		if w.result.Violations++; len(w.result.Wrong) < 100 {
			w.result.Wrong = append(w.result.Wrong, text)
		}
		if first {
			w.result.LastSteps, w.result.KeptIn = w.steps.last(), w.opts.Keep
		}
	})
	if first {
		w.KeepIn(w.opts.Keep)
	}
}

var errViolated = errors.New("a violation ends the run")
