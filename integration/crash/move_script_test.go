//go:build integration

package crash

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/internal/failpoint"
)

// script is a move, and what happens in it besides deaths.
type script struct {
	name, mode string
	fresh      bool  // the destination has never seen the VM
	at         *edge // where do is done
	do         func(*moveRun, context.Context, int) error
	only       func(edge) bool  // deaths that other scripts do not play
	comes      func(seen) []end // what deaths may come to, where the crash table alone does not say
}

func scripts() []script {
	send, committed := edge{point{source, "journal.SENDING", 1}, failpoint.After},
		edge{point{keeper, "record.COMMITTED", 1}, failpoint.After}
	return []script{
		{name: "live", mode: "live"},
		{name: "cold", mode: "cold"},
		{name: "to a new node", mode: "live", fresh: true, only: func(e edge) bool {
			return e.at == destination && (strings.HasPrefix(e.name, "Leases.") || strings.HasPrefix(e.name, "Containers."))
		}},
		{name: "called off", mode: "live", at: &send, do: (*moveRun).callOff, comes: calledOff},
		{name: "reverted", mode: "live", at: &committed, do: (*moveRun).failDestination, comes: onlyHome},
	}
}

func flagRun() string { return flag.Lookup("test.run").Value.String() }

// moveRun is one move in a script.
type moveRun struct {
	*moveWorld
	script   script
	from, to *harness.Node
	id       string
	holds    []*hold
	ordered  chan error
	earlier  []edge // passed before what the script does

	bandwidth uint64 // of the move; 0: as configured
}

func (w *moveWorld) act(s script, from *harness.Node) *moveRun {
	w.orders++
	return &moveRun{moveWorld: w, script: s, from: from, to: w.other(from), id: fmt.Sprintf("move-%d", w.orders),
		ordered: make(chan error, 1)}
}

func (j *moveRun) at(r role) *harness.Node {
	return map[role]*harness.Node{source: j.from, destination: j.to, keeper: j.keeper}[r]
}

func (j *moveRun) release() {
	for _, h := range j.holds {
		h.release()
	}
}

func (j *moveRun) hold(e edge) (*hold, error) {
	h, err := j.arm(j.at(e.at), e)
	j.holds = append(j.holds, h)
	return h, err
}

// begin orders the move and does what the script wants, with programs armed to stop at e.
func (j *moveRun) begin(ctx context.Context, e *edge) error {
	if err := j.forget(j.Nodes()...); err != nil {
		return err
	}
	if j.script.fresh {
		if _, err := j.to.RunCtr(ctx, "container", "rm", j.vm); err != nil && !strings.Contains(err.Error(), "not found") {
			return err
		}
	}
	var first *hold
	if j.script.at != nil {
		// The fence of the last case is written once more when it is cleared.
		err := harness.Poll(ctx, moveBound, func(context.Context) error {
			if p := note(j.to, j.vm).Phase; p != "" {
				return fmt.Errorf("node %s has a journal in %s", j.to.Name, p)
			}
			return nil
		})
		if err != nil {
			return err
		}
		if first, err = j.hold(*j.script.at); err != nil {
			return err
		}
	}
	if e != nil {
		if _, err := j.hold(*e); err != nil {
			return err
		}
	}
	go func() {
		j.ordered <- j.order(context.WithoutCancel(ctx), &nodev1.MigrateRequest{Operation: j.id, To: j.to.Name,
			Mode: j.script.mode, Bandwidth: j.bandwidth})
	}()
	if first == nil {
		if e == nil {
			err := <-j.ordered
			j.ordered <- err
			return err
		}
		return nil
	}
	pid, err := first.reached(ctx, j.checkOpen)
	if err != nil {
		return err
	}
	if j.earlier, err = j.points(); err != nil {
		return err
	}
	if err := j.script.do(j, ctx, pid); err != nil {
		return err
	}
	first.release()
	return nil
}

// checkOpen is an error once the move has come to its end.
func (j *moveRun) checkOpen() error {
	rec, err := j.record(context.Background())
	if err == nil && rec.GetOperation() == nil {
		if phase, why := j.outcomeOf(context.Background(), j.id); phase != nodev1.Phase_PHASE_UNSPECIFIED {
			return fmt.Errorf("%w: the move is over, in %s: %w", errOver, phase, why)
		}
	}
	return nil
}

var errOver = errors.New("nobody comes by any more")

// callOff aborts the move. The order is not waited for: a death may hold it up.
func (j *moveRun) callOff(ctx context.Context, _ int) error {
	go func() {
		_, _ = j.moves.Abort(context.WithoutCancel(ctx), &nodev1.AbortRequest{Operation: j.id, Reason: "test"})
	}()
	return harness.Poll(ctx, stepBound, func(context.Context) error {
		passed, err := j.passed(j.keeper, keeper)
		if err == nil && !slices.ContainsFunc(passed, func(e edge) bool { return e.name == "Moves.Abort" }) {
			err = errors.New("the controller has not heard of the abort")
		}
		return err
	})
}

// failDestination kills the shim that would run the VM next.
func (j *moveRun) failDestination(ctx context.Context, _ int) error {
	pid, err := hostPID(j.to, note(j.to, j.vm).Shim.PID)
	if err != nil {
		return err
	}
	return kill(ctx, pid)
}

// points lists those that were passed on all nodes, after what the script does.
func (j *moveRun) points() (all []edge, err error) {
	for _, r := range roles {
		passed, err := j.passed(j.at(r), r)
		if err != nil {
			return nil, err
		}
		for _, e := range passed {
			if !slices.Contains(all, e) && !slices.Contains(j.earlier, e) && (j.script.do == nil || isRollback(e)) {
				all = append(all, e)
			}
		}
	}
	return all, nil
}

// isRollback tells what a rollback passes from what the move before it did.
func isRollback(e edge) bool {
	for _, way := range []string{"Abort", "ABORT", "FAILED", "Revert", "REVERTING", "Discard", "FENCED", "Kill", "OWN",
		"Tasks.Delete", "Task.Delete", "Task.Shutdown", "Containers."} {
		if strings.Contains(e.name, way) {
			return true
		}
	}
	return false
}

// loser is the node that has not the VM now.
func (j *moveRun) loser() *harness.Node {
	rec, err := j.record(context.Background())
	if err == nil && rec.GetOwner().GetNode() == j.to.Name {
		return j.from
	}
	return j.to
}
