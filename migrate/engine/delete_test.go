package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

func (n *machine) RemoveDeparted(ctx context.Context, _ *nodev1.VM, _ string) error {
	return n.do(ctx, "RemoveDeparted", func() error {
		if n.state[n.node] != gone {
			n.broken = append(n.broken, "the container goes, and the VM is "+n.state[n.node])
		}
		n.removals++
		return nil
	})
}

func (n *machine) Readable(ctx context.Context, _, digest string) error {
	return n.do(ctx, "Readable", func() error {
		if !n.blobs[digest] {
			return fmt.Errorf("read %s: %w", digest, errdefs.ErrDataLoss)
		}
		return nil
	})
}

// remove orders a deletion that comes after a final snapshot.
func (w *world) remove(e *Engine, id string) error {
	_, err := e.Delete(w.t.Context(), &nodev1.DeleteRequest{Vm: vm, Deletion: &nodev1.Deletion{Id: id}})
	return err
}

// deleted waits for the end of the order, and reports whether the VM was deleted.
func (w *world) deleted(when string) bool {
	w.t.Helper()
	over := func() bool {
		rec := w.record()
		return rec.GetOperation() == nil && (rec.GetDeletion() == nil || record.Stuck(rec.GetDeletion()))
	}
	for end := time.Now().Add(20 * time.Second); !over(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("%s: the deletion does not end: %v; calls %v", when, w.record(), w.calls())
		}
	}
	rec := w.record()
	w.mu.Lock()
	defer w.mu.Unlock()
	if done := rec.GetDeletion() == nil; done != (rec.GetOwner().GetDigest() != "") || done != (w.removals > 0) {
		w.t.Fatalf("%s: record %v, %d containers removed; calls %v", when, rec, w.removals, w.log)
	}
	return rec.GetDeletion() == nil
}

// Nothing of the VM goes before its last state is in the store and was read back there.
func TestDeletion(t *testing.T) {
	w := newWorld(t)
	if err := w.remove(w.start("n1"), "d"); err != nil {
		t.Fatal(err)
	}
	if !w.deleted("an order") || w.record().GetDeletion() != nil {
		t.Fatalf("record %v", w.record())
	}
	w.check("deleted")
	calls := w.calls()
	last := 0
	for _, name := range []string{"Accepts", "Capture", "Readable", "Vote", "Commit", "Release", "CleanDeparted",
		"RemoveDeparted"} {
		at := slices.Index(calls, name)
		if at < last {
			t.Fatalf("%s comes too early, or not at all: %v", name, calls)
		}
		last = at
	}
}

// A plain hibernate removes nothing, and asks for nothing to be read.
func TestHibernateKeepsTheContainer(t *testing.T) {
	w := newWorld(t)
	if err := w.hibernate(w.start("n1"), "h"); err != nil {
		t.Fatal(err)
	}
	w.settle("h")
	if calls := w.calls(); slices.Contains(calls, "RemoveDeparted") || slices.Contains(calls, "Readable") {
		t.Errorf("calls %v", calls)
	}
}

// A final snapshot that has failed for good leaves nothing to the hibernates after it.
func TestHibernateAfterAFailedDeletion(t *testing.T) {
	w := newWorld(t)
	w.broke("Readable", fmt.Errorf("mark: %w", errdefs.ErrDataLoss))
	e := w.start("n1")
	if err := w.remove(e, "d"); err != nil || w.deleted("unreadable") {
		t.Fatalf("%v, %v", w.record(), err)
	}
	if err := w.hibernate(e, "h"); err != nil {
		t.Fatal(err)
	}
	w.settle("h")
	if rec := w.record(); rec.GetOwner().GetDigest() == "" || rec.GetDeletion() != nil || w.count("RemoveDeparted") > 0 {
		t.Errorf("record %v, calls %v", rec, w.calls())
	}
}

// Whichever call fails, before or after its effect, the VM is deleted in the end if that may pass. Otherwise it
// runs on or sleeps, whole.
func TestFinalSnapshotFailsAtEachCall(t *testing.T) {
	for _, class := range []error{errdefs.ErrUnavailable, errdefs.ErrResourceExhausted, errdefs.ErrInternal,
		errdefs.ErrFailedPrecondition} {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v/after=%v", class, after), func(t *testing.T) {
				t.Parallel()
				eachCall(t, newWorld, func(w *world, n int) {
					w.strike(fault{call: n, after: after, err: class})
					e := w.engine("n1")
					defer e.Close()
					if w.remove(e, "d") != nil {
						if err := w.remove(e, "d"); err != nil {
							t.Fatalf("call %d: second order: %v", n, err)
						}
					}
					if !w.deleted(fmt.Sprintf("call %d", n)) && record.Transient(class) {
						t.Fatalf("call %d: %v passes, and the VM stays: %v", n, class, w.record())
					}
				})
			})
		}
	}
}

// An engine that dies in any call is followed by one that deletes the VM, from the records alone.
func TestDeletionOverARestart(t *testing.T) {
	for _, after := range []bool{false, true} {
		eachCall(t, newWorld, func(w *world, n int) {
			first := w.engine("n1")
			w.strike(fault{call: n, after: after, kill: first.close})
			err := w.remove(first, "d")
			w.until("the engine is idle", func() bool { return first.life.Err() != nil || w.record().GetDeletion() == nil })
			first.Close()
			w.strike(fault{})
			second := w.engine("n1")
			defer second.Close()
			if err != nil && w.record().GetDeletion() == nil {
				err = w.remove(second, "d")
			}
			if rerr := errors.Join(second.Resume(t.Context()), second.Deletions(t.Context())); rerr != nil {
				t.Fatalf("call %d: order %v, %v", n, err, rerr)
			}
			if !w.deleted(fmt.Sprintf("call %d", n)) {
				t.Fatalf("call %d: a restart is no failure: %v", n, w.record())
			}
			w.once(n)
		})
	}
}

// While the store is away the VM runs, the order says what it waits for, and the tries become
// fewer; a restart begins none early. When it is back the VM is deleted.
func TestDeletionWaits(t *testing.T) {
	w := newWorld(t)
	log := &lines{}
	w.broke("Accepts", fmt.Errorf("mark: %w", errdefs.ErrUnavailable))
	e := w.start("n1")
	e.Events = Log{slog.New(slog.NewJSONHandler(log, nil))}
	if err := w.remove(e, "d"); err != nil {
		t.Fatal(err)
	}
	w.until("three tries have failed", func() bool { return w.record().GetDeletion().GetTries() >= 3 })
	if d := w.record().GetDeletion(); !strings.Contains(d.GetReason(), "mark") || d.GetOperation() == "" ||
		w.stateAt("n1") != runs || w.count("Capture") > 0 {
		t.Errorf("deletion %v, the VM is %q", d, w.stateAt("n1"))
	}
	w.until("it is told", func() bool {
		return strings.Contains(log.String(), "DeletionWaits") &&
			strings.Contains(log.String(), "try 2: begin VM default/web")
	})
	w.broke("Accepts", nil)
	if !w.deleted("the store is back") {
		t.Errorf("record %v", w.record())
	}
	e = w.start("n1")
	e.opts.Again, e.opts.AgainMax = 2*time.Second, 5*time.Minute
	for tries, want := range map[uint32]time.Duration{0: 0, 1: 2 * time.Second, 2: 4 * time.Second, 5: 32 * time.Second,
		9: 5 * time.Minute, 1 << 31: 5 * time.Minute} {
		noted := time.Unix(1700000000, 0)
		e.now = func() time.Time { return noted }
		d := &nodev1.Deletion{Tries: tries, TriedUnixNano: noted.UnixNano()}
		if got := e.deletions.untilNext(d); got != want {
			t.Errorf("after %d tries: %v, want %v", tries, got, want)
		}
		if d.TriedUnixNano += int64(time.Hour); e.deletions.untilNext(d) > want {
			t.Errorf("after %d tries, by a clock that is fast: %v", tries, e.deletions.untilNext(d))
		}
	}
}

// What does not pass keeps the VM, ends the tries, and says why; ordered anew it begins again.
func TestDeletionFailsForGood(t *testing.T) {
	for _, call := range []string{"Accepts", "Capture", "Readable", "Vote"} {
		w := newWorld(t)
		log := &lines{}
		w.broke(call, fmt.Errorf("mark: %w", errdefs.ErrDataLoss))
		e := w.start("n1")
		e.Events = Log{slog.New(slog.NewJSONHandler(log, nil))}
		if err := w.remove(e, "d"); err != nil {
			t.Fatal(err)
		}
		if w.deleted(call) {
			t.Fatalf("%s fails, and the VM is deleted: %v", call, w.calls())
		}
		w.check(call)
		if all := w.record().GetSnapshots(); call != "Vote" && len(all) > 0 {
			t.Errorf("%s: the record lists %v", call, all)
		}
		if d := w.record().GetDeletion(); d.GetTries() != 1 || !strings.Contains(d.GetReason(), "mark") ||
			!errors.Is(record.ClassOf(d.GetClass()), errdefs.ErrDataLoss) {
			t.Errorf("%s: %v", call, d)
		}
		w.until("it is told", func() bool { return strings.Contains(log.String(), "DeletionFails") })
		if err := e.Deletions(t.Context()); err != nil || w.record().GetOperation() != nil {
			t.Errorf("%s: it is tried again: %v, %v", call, w.record(), err)
		}
		w.broke(call, nil)
		if err := w.remove(e, "again"); err != nil || !w.deleted("ordered anew") {
			t.Errorf("%s, ordered anew: %v, %v", call, w.record(), err)
		}
	}
}

// A node that has nowhere to put the snapshot says so, and not for ever.
func TestDeletionWithoutAStore(t *testing.T) {
	w := newWorld(t)
	e := w.start("n1")
	e.opts.Repository = func(*nodev1.Record) string { return "" }
	if err := w.remove(e, "d"); err != nil || w.deleted("no store") ||
		!strings.Contains(w.record().GetDeletion().GetReason(), "no place for snapshots") {
		t.Errorf("%v, %v", w.record(), err)
	}
}

// A deletion that is called off in the midst of a try lets the VM run on, and nothing is tried again. After the
// commit it is too late.
func TestDeletionIsCalledOff(t *testing.T) {
	off := &nodev1.DeleteRequest{Vm: vm, Cancel: true}
	w := newWorld(t)
	inside := make(chan struct{})
	w.waitInside = inside
	e := w.start("n1")
	if err := w.remove(e, "d"); err != nil {
		t.Fatal(err)
	}
	<-inside
	rec, err := e.Delete(t.Context(), off)
	if err != nil || rec.GetDeletion() != nil {
		t.Fatalf("%v, %v", rec, err)
	}
	if op := w.settle(rec.GetOperation().GetId()); op.GetPhase() != nodev1.Phase_PHASE_ABORTED {
		t.Errorf("operation %v", op)
	}
	if err := e.Deletions(t.Context()); err != nil || w.record().GetOperation() != nil {
		t.Errorf("it is tried again: %v, %v", w.record(), err)
	}
	w.check("called off")
	if _, err := e.Delete(t.Context(), off); err != nil {
		t.Errorf("once more: %v", err)
	}

	w = newWorld(t)
	w.hangs("RemoveDeparted", true)
	e = w.start("n1")
	if err := w.remove(e, "d"); err != nil {
		t.Fatal(err)
	}
	w.called("RemoveDeparted", 1)
	if _, err := e.Delete(t.Context(), off); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("after the commit: %v", err)
	}
	if err := w.remove(e, "another"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("ordered after the commit: %v", err)
	}
}

// The order is the VM's: where a move takes it, it is carried out. A wake takes it back.
func TestDeletionFollowsTheVM(t *testing.T) {
	w := liveWorld(t)
	rec, err := w.records.Delete(t.Context(), &nodev1.DeleteRequest{Vm: vm, Deletion: &nodev1.Deletion{Id: "d"}})
	if err != nil {
		t.Fatal(err)
	}
	w.move(w.start("c"), "m", "n2", "live")
	if w.record().GetDeletion().GetId() != rec.GetDeletion().GetId() {
		t.Fatalf("the move has lost the order: %v", w.record())
	}
	if err := w.start("n1").Deletions(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.start("n2").Deletions(t.Context()); err != nil || !w.deleted("at its new node") {
		t.Fatalf("%v, %v", w.record(), err)
	}

	w = newWorld(t)
	w.hangs("CleanDeparted", true)
	if err := w.remove(w.start("n1"), "d"); err != nil {
		t.Fatal(err)
	}
	w.called("CleanDeparted", 1)
	if err := w.wake(w.start("n2"), "w"); err != nil {
		t.Fatal(err)
	}
	w.settle("w")
	if rec := w.record(); rec.GetDeletion() != nil || rec.GetOwner().GetNode() != "n2" {
		t.Errorf("a VM that was woken elsewhere: %v", rec)
	}
}

// An operation that is open is waited for, and a hibernate by hand is the VM's final snapshot.
func TestDeletionWaitsForAnOperation(t *testing.T) {
	w := newWorld(t)
	e := w.start("n1")
	w.hangs("Capture", true)
	if err := w.hibernate(e, "h"); err != nil {
		t.Fatal(err)
	}
	w.called("Capture", 1)
	if err := w.remove(e, "d"); err != nil {
		t.Fatal(err)
	}
	w.hangs("Capture", false)
	if _, err := e.Cancel(t.Context(), "h", "the test's"); err != nil {
		t.Fatal(err)
	}
	if !w.deleted("after another operation") {
		t.Errorf("record %v", w.record())
	}
	w = newWorld(t)
	if _, err := w.records.Delete(t.Context(),
		&nodev1.DeleteRequest{Vm: vm, Deletion: &nodev1.Deletion{Id: "d"}}); err != nil {
		t.Fatal(err)
	}
	if err := w.hibernate(w.start("n1"), "h"); err != nil || !w.deleted("by hand") || w.count("Readable") != 1 {
		t.Errorf("%v, %v; calls %v", w.record(), err, w.calls())
	}
}

// taskMade is when shims say that their task was made.
const taskMade = 1000

// A container is marked while the shim of the VM that slept says of when its task is. After the VM's end that is
// too late: of that name there may be another one. A shim that says nothing holds the end up.
func TestMarksWhileTheShimAnswers(t *testing.T) {
	calls := func(f fault) (string, []string) {
		w := newWorld(t)
		w.fault = f
		if err := w.hibernate(w.start("n1"), "h"); err != nil {
			t.Fatal(err)
		}
		op := w.settle("h")
		all := w.calls()
		at, end := slices.Index(all, "Commit"), slices.Index(all, "CleanDeparted")
		if op.GetPhase() != nodev1.Phase_PHASE_SUCCEEDED || w.made != taskMade || at < 0 || end < at {
			t.Fatalf("%+v: %v, made %d, calls %v", f, op, w.made, all)
		}
		behind := slices.DeleteFunc(slices.Clone(all[at:end]), func(name string) bool {
			return !slices.Contains([]string{"Query", "MarkDeparted", "Release"}, name)
		})
		return strings.Join(behind, " "), all
	}
	want, all := calls(fault{})
	if want != "Query MarkDeparted Release" {
		t.Errorf("without a failure: %s", want)
	}
	for name, want := range map[string]string{
		"Query":        "Query Query MarkDeparted Release",
		"MarkDeparted": "Query MarkDeparted Query MarkDeparted Release",
		"Release":      "Query MarkDeparted Release Query Release", // its answer is lost: the next one finds no shim
	} {
		got, _ := calls(fault{call: slices.Index(all, "Commit") + 1 + slices.Index(all[slices.Index(all, "Commit"):], name),
			after: name == "Release", err: errdefs.ErrUnavailable})
		if got != want {
			t.Errorf("%s fails: %s, want %s", name, got, want)
		}
	}
}
