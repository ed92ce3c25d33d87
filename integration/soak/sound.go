package soak

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"godwit.dev/godwit/integration/harness"
)

// unfaulted verbs are ordered after each judgement, while nothing is wrong: none may fail.
var unfaulted = []string{"run", "hibernate", "wake", "migrate live", "migrate cold", "checkpoint", "exec", "rename",
	"pin", "cp"}

// soundSteps of them come after each judgement.
const soundSteps = 6

// soundStream keeps what is drawn here apart from the schedule: a committed seed stays what it is.
const soundStream = 2

// checkVerbs orders verbs at VMs that were found as they have to be, on a cluster without faults. Whatever
// fails now is godwit's own fault.
func (w *world) checkVerbs(ctx context.Context, schedule *Schedule) {
	named := map[string]verb{}
	for _, v := range verbs() {
		named[v.name] = v
	}
	for range soundSteps {
		step := schedule.verb()
		if err := w.order(ctx, named[step.Name], step); err != nil {
			w.log("sound %s: missed: %v", step, err)
		}
	}
	if !waitFor(&w.calls, settleBound) {
		w.violation("%s after it was ordered, without any fault, a verb has not ended", settleBound)
	}
	w.blames()
}

// retryUnavailable does a verb again for as long as it ends as unavailable, of which the exit codes say that
// trying again is right.
func (a *act) retryUnavailable(ctx context.Context, do func(*act, context.Context) error) (err error) {
	for deadline := time.Now().Add(settleBound / 2); ; {
		if err = do(a, ctx); exitCode(err) != unavailable || time.Now().After(deadline) {
			return err
		}
		a.log("  %s: again: %v", a, err)
		a.id += "-again"
	}
}

// Exit codes of godwit, see docs/reference/cli.md.
const (
	unknown     = 1
	misused     = 2
	absentCode  = 3
	unavailable = 6
	corrupt     = 9
	unbuilt     = 10
)

// exitCode of a godwit that failed; 0: it did not, or is no godwit.
func exitCode(err error) int {
	if run, ok := errors.AsType[*harness.RunError](err); ok && run.Args[0] == "godwit" {
		return run.Code()
	}
	return 0
}

// faultOf says what is wrong with the end of a verb, whatever was done to the cluster; empty: nothing.
func (a *act) faultOf(err error) string {
	switch code := exitCode(err); {
	case code == unknown:
		return "an error that has no class"
	case code == misused || code == unbuilt:
		return "an error of another class than any fault has"
	case code == corrupt && a.g != nil && a.g.excuses() == "":
		return "a snapshot that is corrupt"
	case a.sound && err != nil && (a.g == nil || a.g.excuses() == "" && !a.taskless(err)):
		return "an error while nothing is wrong"
	}
	return ""
}

// taskless reports whether err is of ctr, or of a copy, about a VM whose shim was killed at its owner: containerd has
// no task of it until it wakes or arrives again (ADR 28).
func (a *act) taskless(err error) bool {
	run, ok := errors.AsType[*harness.RunError](err)
	a.g.mu.Lock()
	defer a.g.mu.Unlock()
	return ok && (run.Args[0] == "ctr" || slices.ContainsFunc(run.Args, func(arg string) bool {
		return slices.Contains([]string{"cp", "stop", "start", "restart"}, arg)
	})) && a.owner != nil && a.g.adopted == a.owner.Name
}

// single checks that each VM which runs has one VMM, at its owner, and that no other VMM is left.
func (w *world) single(ctx context.Context) error {
	all, err := w.look(ctx)
	if err != nil {
		return err
	}
	for _, n := range w.Nodes() {
		var owned []string
		for _, g := range w.guests {
			if g.vm() != "" && all[g.name].GetOwner().GetNode() == n.Name {
				owned = append(owned, g.name)
			}
		}
		pids, err := n.VMMs()
		if err != nil {
			return err
		}
		if slices.Sort(owned); len(pids) != len(owned) {
			return fmt.Errorf("node %s owns %q and runs %d VMMs", n.Name, owned, len(pids))
		}
	}
	return nil
}
