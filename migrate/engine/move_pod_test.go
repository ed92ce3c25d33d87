package engine

import (
	"strings"
	"testing"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// TestMoveAwaitsPod: the move of a pod goes on once its destination has the pod's containers. It is tried again for as
// long, and no failure is told.
func TestMoveAwaitsPod(t *testing.T) {
	w := liveWorld(t)
	w.pod, w.awaits = true, 3
	op := w.move(w.start("c"), "m", "n2", "auto")
	if op.Phase != nodev1.Phase_PHASE_SUCCEEDED || op.GetMode() != "live" || w.record().GetOwner().GetNode() != "n2" {
		t.Errorf("%v, owner %v", op, w.record().GetOwner())
	}
	if w.awaits >= 0 {
		t.Errorf("the move went on while the pod had to wait %d times more", w.awaits+1)
	}
}

// TestPodMovesLiveAlone: a pod would stand still in a cold move until its containers are made. It is refused, and
// stays.
func TestPodMovesLiveAlone(t *testing.T) {
	for mode, obstacles := range map[string][]string{"cold": nil, "auto": {"no room"}, "live": {"no room"}} {
		w := liveWorld(t)
		w.pod, w.obstacles = true, obstacles
		op := w.move(w.start("c"), "m", "n2", mode)
		if op.Phase != nodev1.Phase_PHASE_FAILED || w.record().GetOwner().GetNode() != "n1" ||
			!strings.Contains(op.GetReason(), "godwit hibernate") {
			t.Errorf("%s: %v", mode, op)
		}
	}
}

// TestPodIsAwaitedForSoLong: the wait for a pod ends with the time of the move, and the pod runs on.
func TestPodIsAwaitedForSoLong(t *testing.T) {
	w := liveWorld(t)
	w.pod, w.awaits = true, 1<<30
	e := w.start("c")
	e.opts.Operation = boundOperation
	op := w.move(e, "m", "n2", "live")
	if op.Phase != nodev1.Phase_PHASE_FAILED || w.record().GetOwner().GetNode() != "n1" {
		t.Errorf("%v, owner %v", op, w.record().GetOwner())
	}
}

// TestMoveAwaitsProbe: an exec of a pod that runs is waited for: the offer names it, or Send does if it has begun
// since. The move goes on once none runs. Who orders execs to be ended does not wait for the offer.
func TestMoveAwaitsProbe(t *testing.T) {
	const never = 1 << 20
	for name, c := range map[string]struct {
		offers, sends int
		end           bool
	}{"offer": {offers: 3}, "send": {sends: 3}, "ended by order": {offers: never, end: true}} {
		w := liveWorld(t)
		w.pod, w.probed, w.probes = true, c.offers, c.sends
		e := w.start("c")
		_, err := e.Migrate(t.Context(), &nodev1.MigrateRequest{Vm: vm, To: "n2", Mode: "auto", Operation: "m",
			EndExecs: c.end})
		if err != nil {
			t.Fatal(err)
		}
		op := w.settle("m")
		if op.Phase != nodev1.Phase_PHASE_SUCCEEDED || op.GetMode() != "live" || w.record().GetOwner().GetNode() != "n2" {
			t.Errorf("%s: %v, owner %v", name, op, w.record().GetOwner())
		}
		if (w.probed >= 0 || w.probes >= 0) != c.end {
			t.Errorf("%s: %d offers and %d calls of Send would still name an exec", name, w.probed, w.probes)
		}
	}
}
