package engine

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// first is an order of a VM that may have no record yet, as the node service gives it.
func (w *world) first(e *Engine, stays bool, order func() error) error {
	if err := e.Enroll(w.t.Context(), vm, stays); err != nil {
		return err
	}
	return order()
}

func (w *world) firstHibernate(e *Engine, id string) error {
	return w.first(e, false, func() error { return w.hibernate(e, id) })
}

func (w *world) firstCheckpoint(e *Engine, id string) error {
	return w.first(e, true, func() error { return w.checkpoint(e, id) })
}

// A VM that was started without a record has one after its first order: under its own uid, and its node's from the
// first write on. It sleeps, and wakes on another node.
func TestFirstHibernate(t *testing.T) {
	w := unrecorded(t)
	e := w.start("n1")
	if err := w.hibernate(e, "h0"); !errdefs.IsNotFound(err) {
		t.Fatalf("without a record it is ordered to sleep: %v", err)
	}
	if err := e.Enroll(t.Context(), vm, true); err != nil {
		t.Fatal(err)
	}
	if rec := w.record(); rec.GetUid() != w.uid || rec.GetOwner().GetNode() != "n1" || rec.GetGeneration() != 1 {
		t.Fatalf("its record is %v", rec)
	}
	if err := w.firstHibernate(e, "h1"); err != nil {
		t.Fatal(err)
	}
	if op := w.settle("h1"); op.GetPhase() != nodev1.Phase_PHASE_SUCCEEDED {
		t.Fatalf("hibernate: %v", op)
	}
	w.check("h1")
	if err := w.wake(w.start("n2"), "w1"); err != nil {
		t.Fatal(err)
	}
	w.settle("w1")
	w.check("w1")
}

// What is no VM that runs here without a claim gets no record, and the answer says what to do.
func TestWhatIsNotEnrolled(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*world)
		is     func(error) bool
		says   string
	}{
		"nothing runs": {func(w *world) { w.state["n1"] = gone }, errdefs.IsNotFound, "none sleeps"},
		"a shim that does not answer": {func(w *world) { w.broke("Query", errdefs.ErrUnavailable) }, errdefs.IsUnavailable,
			"does not answer"},
		"records that do not answer": {func(w *world) { w.broke("Get", errdefs.ErrUnavailable) },
			errdefs.IsUnavailable, ""},
		"it has ended": {func(w *world) { w.state["n1"] = stopped }, errdefs.IsFailedPrecondition, "does not run"},
		"a claim of other records": {func(w *world) { w.gens["n1"] = 3 }, errdefs.IsFailedPrecondition,
			"controller.address"},
		"another VM's record": {func(w *world) {
			_, err := w.records.Ensure(w.t.Context(), &nodev1.EnsureRequest{Vm: vm})
			if err != nil {
				w.t.Fatal(err)
			}
		}, errdefs.IsFailedPrecondition, "godwit rm default/web"},
		"a shim of an earlier build": {func(w *world) { w.early = true }, errdefs.IsFailedPrecondition, "godwit hibernate"},
	} {
		t.Run(name, func(t *testing.T) {
			w := unrecorded(t)
			c.change(w)
			err := w.start("n1").Enroll(t.Context(), vm, true)
			if !c.is(err) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("it says %v", err)
			}
			rec, err := w.records.Get(t.Context(), &nodev1.GetRequest{Vm: vm})
			if owned := rec.GetOwner().GetNode() != ""; owned && !w.early || err != nil && !errdefs.IsNotFound(err) {
				t.Errorf("its record is %v, %v", rec, err)
			}
		})
	}
	w := unrecorded(t)
	w.early = true
	if err := w.firstHibernate(w.start("n1"), "h0"); err != nil { // it leaves, and its shim ends
		t.Fatal(err)
	}
	if op := w.settle("h0"); op.GetPhase() != nodev1.Phase_PHASE_SUCCEEDED {
		t.Errorf("hibernate under an earlier shim: %v", op)
	}
}

// Two machines that each run a VM of one name cannot both have its record: the second is refused, and ends nothing.
func TestOneNameOneRecord(t *testing.T) {
	w := unrecorded(t)
	other := uuid.NewString()
	if _, err := w.records.Ensure(t.Context(), &nodev1.EnsureRequest{Vm: vm, Uid: other, Node: "n2"}); err != nil {
		t.Fatal(err)
	}
	e := w.start("n1")
	if err := e.Enroll(t.Context(), vm, false); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("the second is enrolled: %v", err)
	}
	w.reconcile(e)
	if rec := w.record(); rec.GetUid() != other || rec.GetOwner().GetNode() != "n2" || w.stateAt("n1") != runs {
		t.Errorf("record %v, VM on n1 %s", rec, w.stateAt("n1"))
	}
}
