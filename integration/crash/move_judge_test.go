//go:build integration

package crash

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/integration/harness"
)

// end is where an observer finds the VM once everything has settled.
type end string

const (
	stays end = "stays" // it runs at its source
	moved end = "moved" // it runs at its destination
	gone  end = "lost"  // it runs nowhere, and the record says so
)

// seen is how things stand at a death.
type seen struct {
	at       role
	who      victim
	phase    nodev1.Phase
	own      bool // the record names the destination
	landing  bool // the destination has not said yet that it runs
	from, to string
}

// no program died: the program that came by has ended by itself.
const noVictim victim = "nobody"

// death kills what comes by e, and judges. It tells whether there was something to kill.
func (w *moveWorld) death(t *testing.T, s script, e edge) (outcome string, err error) {
	ctx := t.Context()
	from, err := w.awake(ctx)
	if err != nil {
		return caseFailed, fmt.Errorf("before: %w", err)
	}
	j := w.act(s, from)
	defer j.release()
	if err := j.begin(ctx, &e); err != nil {
		return caseFailed, fmt.Errorf("reach the point: %w", err)
	}
	outcome = caseKilled
	pid, err := j.holds[len(j.holds)-1].reached(ctx, j.checkOpen)
	switch {
	case err == nil:
	case errors.Is(err, errOver) && e.n > 1 && s.do != nil: // after a death one more or less may come by
		outcome = caseMissed
	default:
		return caseFailed, fmt.Errorf("reach the point: %w", err)
	}
	at, err := j.look(ctx, e.at, pid)
	if err != nil {
		return caseFailed, err
	}
	if at.who != noVictim {
		switch err := kill(ctx, pid); {
		case errors.Is(err, unix.ESRCH):
			at.who = noVictim
		case err != nil:
			return caseFailed, err
		}
	}
	j.release()
	if at.who == daemon {
		if err := j.restart(ctx, j.at(e.at)); err != nil {
			return caseFailed, err
		}
	}
	if at.who == noVictim && outcome == caseKilled {
		outcome = caseEnded
	}
	return outcome, j.judge(t, at, j.allowed(at))
}

func (j *moveRun) restart(ctx context.Context, n *harness.Node) error {
	_ = n.Godwitd.Kill()
	return n.StartGodwitd(ctx)
}

// look takes down how things stand.
func (j *moveRun) look(ctx context.Context, r role, pid int) (seen, error) {
	rec, err := j.record(ctx)
	if err != nil {
		return seen{}, err
	}
	at := seen{at: r, who: shimProcess, phase: rec.GetOperation().GetPhase(), own: rec.GetOwner().GetNode() == j.to.Name,
		from: note(j.from, j.vm).Phase, to: note(j.to, j.vm).Phase}
	at.landing = note(j.to, j.vm).Waking
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	switch {
	case filepath.Base(exe) == "godwitd":
		at.who = daemon
	case pid == 0 || errors.Is(err, os.ErrNotExist): // it was about to end when it came by
		at.who, err = noVictim, nil
	}
	return at, err
}

// allowed is the crash table.
func (j *moveRun) allowed(at seen) []end {
	switch {
	case at.who == shimProcess && at.at == source && at.from == "OWN" && !at.own:
		return []end{gone, stays} // no operation holds it: its end is the task's, as ever
	case at.who == shimProcess && at.at == destination && at.to == "OWN" && at.landing:
		return []end{moved}
	case at.who == shimProcess && at.at == destination && at.to == "OWN":
		return []end{gone}
	case j.script.comes != nil:
		return j.script.comes(at)
	case at.who == shimProcess && at.at == destination:
		return []end{stays}
	case at.own:
		return []end{moved}
	case at.who == shimProcess && at.at == source && at.from == "SENDING" && j.script.mode == "live":
		return []end{stays}
	}
	return []end{stays, moved}
}

func onlyHome(seen) []end { return []end{stays} }

// calledOff: an order to abort that died with the controller before it was durable has no effect.
func calledOff(at seen) []end {
	if at.at == keeper && at.phase >= nodev1.Phase_PHASE_PENDING && at.phase <= nodev1.Phase_PHASE_SWITCHING {
		return []end{stays, moved}
	}
	return onlyHome(at)
}

// judge waits for the end and compares it with what may be. Whatever it is, no counter is
// seen twice or goes back, memory and disk are one, and nothing is left.
func (j *moveRun) judge(t *testing.T, at seen, may []end) error {
	ctx, killed := t.Context(), time.Now()
	select {
	case err := <-j.ordered:
		if err != nil {
			return fmt.Errorf("order the move: %w", err)
		}
	case <-ctx.Done():
		return ctx.Err()
	}
	rec, err := j.settled(ctx)
	if err != nil {
		return err
	}
	settled := time.Now()
	phase, told := j.outcomeOf(ctx, j.id)
	got, err := j.find(ctx, rec, may)
	t.Logf("%s; %s of %s in %s, source %q, destination %q; settled after %.1f s, %s: %v", got, at.who, at.at, at.phase,
		at.from, at.to, settled.Sub(killed).Seconds(), phase, told)
	if err != nil {
		return err
	}
	if doubled := j.watch.duplicates(); len(doubled) > 0 {
		return fmt.Errorf("the VM ran twice: %s", strings.Join(doubled, ", "))
	}
	if !slices.Contains(may, got) {
		return fmt.Errorf("the VM is %s, want one of %v: %w", got, may, told)
	}
	if phase == nodev1.Phase_PHASE_SUCCEEDED != (got == moved) && phase != nodev1.Phase_PHASE_UNSPECIFIED && got != gone {
		return fmt.Errorf("the VM is %s, and the operation says %s: %w", got, phase, told)
	}
	if got == gone {
		return j.remove(ctx)
	}
	return j.clean(ctx, j.loser())
}

// find looks where the VM is.
func (j *moveRun) find(ctx context.Context, rec *nodev1.Record, may []end) (end, error) {
	owner := j.node(rec.GetOwner().GetNode())
	if slices.Contains(may, gone) {
		err := j.checkSilent(ctx) // a VM whose shim has died is ended within a moment
		if err == nil || owner == nil {
			return gone, err
		}
	}
	if owner == nil {
		return gone, fmt.Errorf("the VM is owned by %v", rec.GetOwner())
	}
	where := stays
	if owner == j.to {
		where = moved
	}
	if err := j.same(ctx, time.Now()); err != nil {
		return gone, fmt.Errorf("node %s owns it: %w", owner.Name, err)
	}
	if p := note(owner, j.vm).Phase; p != "OWN" {
		return where, fmt.Errorf("node %s owns it, and its journal says %q", owner.Name, p)
	}
	return where, nil
}

// checkSilent checks that nothing runs.
func (j *moveRun) checkSilent(ctx context.Context) error {
	before := j.watch.latest()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(quiet):
	}
	if now := j.watch.latest(); now.Counter != before.Counter {
		return errors.New("the VM is heard while it must not run")
	}
	return nil
}
