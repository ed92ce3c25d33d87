package engine

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// liveWorld is a world whose shims can send.
func liveWorld(t *testing.T) *world {
	w := newWorld(t)
	w.live = true
	return w
}

func (w *world) move(e *Engine, id, to, mode string) *nodev1.Operation {
	w.t.Helper()
	if err := w.moveTo(e, id, to, mode); err != nil {
		w.t.Fatal(err)
	}
	op := w.settle(id)
	w.check(id)
	return op
}

// A cold move lists its snapshot and marks it spent. No scan takes it for a leftover, and no node restores it. A
// live move leaves no snapshot. Both grow the generation by one.
func TestMove(t *testing.T) {
	for mode, snapshots := range map[string]int{"cold": 1, "live": 0, "auto": 0} {
		w := liveWorld(t)
		before := w.record().GetGeneration()
		op := w.move(w.start("c"), "m", "n2", mode)
		rec := w.record()
		if op.Phase != nodev1.Phase_PHASE_SUCCEEDED || rec.GetOwner().GetNode() != "n2" || rec.GetGeneration() != before+1 {
			t.Fatalf("%s: %v, %v", mode, op, rec)
		}
		if len(rec.GetSnapshots()) != snapshots || len(rec.GetSpent()) != snapshots {
			t.Errorf("%s: snapshots %v, spent %v", mode, rec.GetSnapshots(), rec.GetSpent())
		}
		if o, ok := record.ParseOutcome(op.GetOutcome()); !ok || o.DowntimeMS <= 0 {
			t.Errorf("%s: outcome %s", mode, op.GetOutcome())
		}
	}
}

// Execs go along to a node whose shims take them up, in both modes, unless the order is to end them. A shim of a
// build before would end them without an order. A hibernate takes none along.
func TestMoveTakesExecs(t *testing.T) {
	for _, mode := range []string{"cold", "live"} {
		for to, want := range map[string]bool{"n2": true, "n3": false} {
			for _, end := range []bool{false, true} {
				w := liveWorld(t)
				_, err := w.start("c").Migrate(t.Context(), &nodev1.MigrateRequest{Vm: vm, Operation: "m", To: to, Mode: mode,
					EndExecs: end})
				if err != nil {
					t.Fatal(err)
				}
				if op := w.settle("m"); op.Phase != nodev1.Phase_PHASE_SUCCEEDED || w.execs != (want && !end) {
					t.Errorf("%s to %s, end %v: %s, execs go along: %v", mode, to, end, op.Phase, w.execs)
				}
			}
		}
	}
	if o := captureOf(&nodev1.Operation{Kind: nodev1.Kind_KIND_HIBERNATE}); o.GetExecs() {
		t.Error("execs go into a hibernate")
	}
}

// auto goes through the registry where live does not work, before anything is touched; live
// itself is refused with the reason.
func TestMoveAuto(t *testing.T) {
	w := newWorld(t)
	e := w.start("c")
	if op := w.move(e, "m", "n2", "live"); op.Phase != nodev1.Phase_PHASE_FAILED ||
		!strings.Contains(op.Reason, "cannot send") || w.count("Capture")+w.count("Prepare") > 0 {
		t.Errorf("live: %v; calls %v", op, w.calls())
	}
	if op := w.move(e, "m2", "n2", "auto"); op.Phase != nodev1.Phase_PHASE_SUCCEEDED || op.Mode != "cold" ||
		op.WantedMode != "auto" {
		t.Errorf("auto: %v", op)
	}
}

// What stands against the VM at its destination is found before the VM notices, all of it
// at once.
func TestMoveIncompatible(t *testing.T) {
	w := newWorld(t)
	w.obstacles = []string{"it has no room", "its VMM is older"}
	op := w.move(w.start("c"), "m", "n2", "cold")
	if op.Phase != nodev1.Phase_PHASE_FAILED || !strings.Contains(op.Reason, "no room; its VMM is older") ||
		w.count("Capture") > 0 {
		t.Errorf("%v; calls %v", op, w.calls())
	}
}

// A move's order is closed if its source is missing, is another VM by now, or has ended. Each case has its own
// reason. A caller that waits for several moves then does not wait for this one.
func TestMoveOfWhatIsNotThere(t *testing.T) {
	for name, why := range map[string]error{"gone": errdefs.ErrNotFound, "replaced": stale("generation 3 is stale"),
		"ended": stale("it is stopped, not running")} {
		w := liveWorld(t)
		w.broke("Offer", why)
		op := w.move(w.start("c"), "m", "n2", "auto")
		if op.Phase != nodev1.Phase_PHASE_FAILED || !strings.Contains(op.Reason, why.Error()) ||
			op.Class != record.Class(why) || w.count("Prepare") > 0 {
			t.Errorf("%s: %v", name, op)
		}
	}
}

// What cannot become a move is refused at once.
func TestMoveIsRefused(t *testing.T) {
	w := newWorld(t)
	w.cordoned = "n3"
	e := w.start("c")
	for name, c := range map[string]struct {
		req   *nodev1.MigrateRequest
		class func(error) bool
		text  string
	}{
		"unknown node": {&nodev1.MigrateRequest{To: "n9"}, errdefs.IsNotFound, "n9"},
		"the same":     {&nodev1.MigrateRequest{To: "n1"}, errdefs.IsInvalidArgument, "already"},
		"cordoned":     {&nodev1.MigrateRequest{To: "n3"}, errdefs.IsFailedPrecondition, "uncordon"},
		"mode":         {&nodev1.MigrateRequest{To: "n2", Mode: "warm"}, errdefs.IsInvalidArgument, "warm"},
		"knobs": {&nodev1.MigrateRequest{To: "n2", DowntimeMs: -1, TimeoutMs: 1, Bandwidth: 1,
			AbortOn: []string{"rain"}}, errdefs.IsInvalidArgument, "rain"},
		"no downtime": {&nodev1.MigrateRequest{To: "n2", AbortOn: []string{"downtime"}}, errdefs.IsInvalidArgument, "needs"},
	} {
		c.req.Vm = vm
		if _, err := e.Migrate(t.Context(), c.req); !c.class(err) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.settleHibernate("h")
	if err := w.moveTo(e, "m", "n2", "cold"); !errdefs.IsFailedPrecondition(err) ||
		!strings.Contains(err.Error(), "owns it") {
		t.Errorf("of a VM that sleeps: %v", err)
	}
}

func (w *world) settleHibernate(id string) {
	w.t.Helper()
	if err := w.hibernate(w.start("n1"), id); err != nil {
		w.t.Fatal(err)
	}
	w.settle(id)
}

// hang has a call wait for the end of its context.
func (w *world) hangs(name string, on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hang = map[string]bool{name: on}
}

// A second move is refused and names the first. A move that is turned to another node under its id is undone and
// begins anew. A move that is turned to its source is called off (R6).
func TestMoveIsTurned(t *testing.T) {
	w := newWorld(t)
	e := w.start("c")
	w.hangs("Prepare", true)
	if err := w.moveTo(e, "m", "n2", "cold"); err != nil {
		t.Fatal(err)
	}
	w.called("Prepare", 1)
	if err := w.moveTo(e, "other", "n3", "cold"); !errdefs.IsFailedPrecondition(err) ||
		!strings.Contains(err.Error(), "operation m ") {
		t.Errorf("a second move: %v", err)
	}
	if err := w.moveTo(e, "m", "n2", "cold"); err != nil {
		t.Errorf("the same once more: %v", err)
	}
	w.hangs("Prepare", false)
	if err := w.moveTo(e, "m", "n3", "cold"); err != nil {
		t.Fatal(err)
	}
	op := w.settle("m")
	w.check("m")
	if op.Phase != nodev1.Phase_PHASE_SUCCEEDED || op.Attempt != 2 || op.Destination != "n3" || len(op.Attempts) != 1 ||
		w.record().GetOwner().GetNode() != "n3" {
		t.Fatalf("turned: %v", op)
	}

	w.hangs("Prepare", true)
	if err := w.moveTo(e, "back", "n1", "cold"); err != nil {
		t.Fatal(err)
	}
	w.called("Prepare", 3)
	if err := w.moveTo(e, "back", "n3", "cold"); err != nil {
		t.Fatal(err)
	}
	if op := w.settle("back"); op.Phase != nodev1.Phase_PHASE_ABORTED {
		t.Fatalf("turned to its source: %v", op)
	}
	w.check("back")
}

// Nothing calls a move off that is committed, and an abort before that beats the transfer.
func TestMoveIsAborted(t *testing.T) {
	w := newWorld(t)
	e := w.start("c")
	w.hangs("Prepare", true)
	if err := w.moveTo(e, "m", "n2", "cold"); err != nil {
		t.Fatal(err)
	}
	w.called("Prepare", 1)
	if _, err := e.Cancel(t.Context(), "m", "no more"); err != nil {
		t.Fatal(err)
	}
	if op := w.settle("m"); op.Phase != nodev1.Phase_PHASE_ABORTED || op.Reason != "no more" {
		t.Fatalf("%v", op)
	}
	w.check("m")
	w.hangs("Run", true)
	if err := w.moveTo(e, "m2", "n2", "cold"); err != nil {
		t.Fatal(err)
	}
	w.called("Run", 1)
	if _, err := e.Cancel(t.Context(), "m2", ""); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("after the commit: %v", err)
	}
	if err := w.moveTo(e, "m2", "n3", ""); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("turned after the commit: %v", err)
	}
}

// A destination that fenced itself gives the VM back, under a generation of its own; one
// that may have run it does not (R9).
func TestMoveReverts(t *testing.T) {
	w := liveWorld(t)
	w.fences = true
	before := w.record().GetGeneration()
	op := w.move(w.start("c"), "m", "n2", "live")
	if rec := w.record(); op.Phase != nodev1.Phase_PHASE_FAILED || rec.GetOwner().GetNode() != "n1" ||
		rec.GetGeneration() != before+2 {
		t.Errorf("%v, %v", op, rec)
	}

	w = newWorld(t)
	w.loses = true
	if err := w.moveTo(w.start("c"), "m", "n2", "cold"); err != nil {
		t.Fatal(err)
	}
	op = w.settle("m")
	if op.Phase != nodev1.Phase_PHASE_LOST_AT_DEST || w.record().GetLost() != op.GetDigest() || w.state["n1"] == runs {
		t.Errorf("lost: %v; source is %s", op, w.state["n1"])
	}
}

// A VM that would stand still for longer than it may goes on at its source, if the order says so. At the timeout it
// does so in any case.
func TestMoveGivesUp(t *testing.T) {
	w := liveWorld(t)
	e := w.start("c")
	_, err := e.Migrate(t.Context(), &nodev1.MigrateRequest{Vm: vm, To: "n2", Mode: "live", Operation: "m", DowntimeMs: 10,
		AbortOn: []string{"downtime"}})
	if err != nil {
		t.Fatal(err)
	}
	if op := w.settle("m"); op.Phase != nodev1.Phase_PHASE_FAILED || !strings.Contains(op.Reason, "25 ms") {
		t.Errorf("%v", op)
	}
	w.check("m")
	w.hangs("Send", true)
	<-e.idle("m") // it reads them
	e.opts.Stall = 20 * time.Millisecond
	_, err = e.Migrate(t.Context(), &nodev1.MigrateRequest{Vm: vm, To: "n2", Mode: "live", Operation: "stalled",
		AbortOn: []string{"stall"}})
	if err != nil {
		t.Fatal(err)
	}
	if op := w.settle("stalled"); op.Phase != nodev1.Phase_PHASE_FAILED ||
		!strings.Contains(op.Reason, "nothing has moved") {
		t.Errorf("%v", op)
	}
	w.check("stalled")
	<-e.idle("stalled")
	e.opts.Operation = 50 * time.Millisecond
	if op := w.move(e, "m2", "n2", "live"); op.Phase != nodev1.Phase_PHASE_FAILED {
		t.Errorf("at the timeout: %v", op)
	}
}

// A daemon that is away for a moment costs no move. A destination that stays away gives the VM back. A source that
// stays away after the switch leaves cleanup, which it does itself when it is back.
func TestMoveWithSilentNodes(t *testing.T) {
	w := newWorld(t)
	e := w.start("c")
	e.opts.Patience = 10 * time.Second
	w.silence("n1", true)
	if err := w.moveTo(e, "m", "n2", "cold"); err != nil {
		t.Fatal(err)
	}
	w.until("it is checked", func() bool { return w.record().GetOperation().GetPhase() == nodev1.Phase_PHASE_PREPARING })
	w.silence("n1", false)
	if op := w.settle("m"); op.Phase != nodev1.Phase_PHASE_SUCCEEDED {
		t.Errorf("%v", op)
	}
	<-e.idle("m")
	e.opts.Patience, e.opts.Step = time.Millisecond, time.Millisecond
	w.hangs("Run", true)
	if err := w.moveTo(e, "m2", "n1", "cold"); err != nil {
		t.Fatal(err)
	}
	w.called("Run", 2)
	w.silence("n2", true)
	w.mu.Lock()
	w.hang = nil
	w.mu.Unlock()
	op := w.settle("m2")
	if op.Phase != nodev1.Phase_PHASE_SUCCEEDED || !op.GetCleanupPending() || w.state["n2"] != stopped {
		t.Fatalf("%v; source is %s", op, w.state["n2"])
	}
	w.silence("n2", false)
	n2 := w.start("n2")
	if err := n2.Reconcile(t.Context(), at(true)); err != nil {
		t.Fatal(err)
	}
	w.check("m2")
}

func (w *world) silence(node string, silent bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.silent = map[string]bool{node: silent}
}

// turning is the records of a driver of whose move another controller takes an order, right before
// the move is finished.
type turning struct {
	nodev1.RecordsService
	to   string
	once sync.Once
}

func (r *turning) Finish(ctx context.Context, req *nodev1.FinishRequest) (rec *nodev1.Record, err error) {
	r.once.Do(func() {
		_, err = r.Advance(ctx, &nodev1.AdvanceRequest{
			Vm: req.GetVm(), Operation: req.GetOperation(), Attempt: req.GetAttempt(), Generation: req.GetGeneration(),
			Phase: nodev1.Phase_PHASE_ABORTING, Retarget: r.to,
		})
	})
	if err != nil {
		return nil, err
	}
	return r.RecordsService.Finish(ctx, req)
}

// An order that turns a move while its rollback ends is obeyed: it was answered with success (R6).
func TestMoveIsTurnedAtItsEnd(t *testing.T) {
	w := liveWorld(t)
	e := w.engine("c")
	e.Records = &turning{RecordsService: e.Records, to: "n3"}
	t.Cleanup(e.Close)
	w.hangs("Send", true)
	if err := w.moveTo(e, "m", "n2", "live"); err != nil {
		t.Fatal(err)
	}
	w.called("Send", 1)
	if _, err := w.records.Advance(t.Context(), &nodev1.AdvanceRequest{
		Vm: vm, Operation: "m", Attempt: 1, Generation: w.record().GetGeneration(), Phase: nodev1.Phase_PHASE_ABORTING,
		Reason: "it broke",
	}); err != nil {
		t.Fatal(err)
	}
	w.hangs("Send", false)
	e.running("m").cut()
	op := w.settle("m")
	w.check("m")
	if op.GetPhase() != nodev1.Phase_PHASE_SUCCEEDED || op.GetDestination() != "n3" ||
		w.record().GetOwner().GetNode() != "n3" {
		t.Errorf("turned while it was undone: %v", op)
	}
}
