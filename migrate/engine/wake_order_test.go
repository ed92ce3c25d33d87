package engine

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// R10 for the other orders that a controller gives a node: one that comes late is for another life of the VM, and is
// refused by name. One whose operation is known is answered once more, whatever the VM is by now.
func TestOrderThatComesLate(t *testing.T) {
	give := func(e *Engine, kind, id string, rec *nodev1.Record) error {
		var err error
		if kind == "hibernate" {
			_, err = e.Hibernate(t.Context(), &nodev1.HibernateRequest{Vm: vm, Operation: id, Uid: rec.GetUid(),
				Generation: rec.GetGeneration()})
		} else {
			_, err = e.Checkpoint(t.Context(), &nodev1.CheckpointRequest{Vm: vm, Operation: id, Uid: rec.GetUid(),
				Generation: rec.GetGeneration()})
		}
		return err
	}
	for _, kind := range []string{"hibernate", "checkpoint"} {
		w := newWorld(t)
		n1, now := w.start("n1"), w.record()
		for name, then := range map[string]*nodev1.Record{
			"another generation": {Uid: now.GetUid(), Generation: now.GetGeneration() + 6},
			"another VM":         {Uid: "another", Generation: now.GetGeneration()},
			"another VM by uid":  {Uid: "another"},
		} {
			var held *record.HeldError
			if err := give(n1, kind, "late", then); !errors.As(err, &held) || !strings.Contains(err.Error(), kind) {
				t.Errorf("%s, %s: %v", kind, name, err)
			}
			if rec := w.record(); !proto.Equal(rec, now) {
				t.Errorf("%s, %s: record %v, was %v", kind, name, rec, now)
			}
		}
		if err := give(n1, kind, "op", now); err != nil {
			t.Fatal(err)
		}
		if op := w.settle("op"); op.GetPhase() != nodev1.Phase_PHASE_SUCCEEDED {
			t.Fatalf("%v", op)
		}
		if err := give(n1, kind, "op", now); err != nil || w.count("Capture") != 1 {
			t.Errorf("%s, once more: %v, calls %v", kind, err, w.calls())
		}
		w.check("op")
	}
}

// An order that waits for another operation of this node is answered while its caller listens: who has heard nothing
// takes the node for one that hangs.
func TestOrderIsAnsweredInTime(t *testing.T) {
	w := newWorld(t)
	e := w.start("n1")
	w.hangs("Capture", true)
	if err := w.checkpoint(e, "c"); err != nil {
		t.Fatal(err)
	}
	w.called("Capture", 1)
	ctx, cancel := context.WithTimeout(t.Context(), answerTime+100*time.Millisecond)
	defer cancel()
	_, err := e.Hibernate(ctx, &nodev1.HibernateRequest{Vm: vm, Operation: "h"})
	var held *record.HeldError
	if !errors.As(err, &held) || held.Record.GetOperation().GetId() != "c" || ctx.Err() != nil {
		t.Errorf("answered %v, and its context is %v", err, ctx.Err())
	}
	w.hangs("Capture", false)
	if _, err := e.Cancel(t.Context(), "c", "the test's"); err != nil {
		t.Fatal(err)
	}
	if err := w.hibernate(e, "h"); err != nil {
		t.Errorf("it is not waited for: %v", err)
	}
	w.settle("h")
}

// R10: an order to wake is for the VM as it was when it was given. An order may come late, when the VM has run and
// sleeps again, or when another VM has that name. It is refused by name and touches nothing. An order whose
// operation is known is answered once more. An order of a build before, which names no generation, is obeyed.
func TestWakeThatComesLate(t *testing.T) {
	w := asleep(t)
	n2, then := w.start("n2"), w.record()
	order := &nodev1.WakeRequest{Vm: vm, Operation: "w", Digest: then.GetOwner().GetDigest(),
		Generation: then.GetGeneration(), Uid: then.GetUid()}
	if _, err := n2.Wake(t.Context(), order); err != nil {
		t.Fatal(err)
	}
	if op := w.settle("w"); op.GetPhase() != nodev1.Phase_PHASE_SUCCEEDED {
		t.Fatalf("%v", op)
	}
	for range 2 {
		again, err := n2.Wake(t.Context(), order)
		if err != nil || again.GetOperation().GetId() != "w" || !again.GetSettled() {
			t.Fatalf("the same order once more: %v, %v", again, err)
		}
	}
	if err := w.hibernate(n2, "h1"); err != nil {
		t.Fatal(err)
	}
	if op := w.settle("h1"); op.GetPhase() != nodev1.Phase_PHASE_SUCCEEDED {
		t.Fatalf("%v", op)
	}
	now := w.record()
	for name, change := range map[string]func(*nodev1.WakeRequest){
		"an earlier generation": func(r *nodev1.WakeRequest) { r.Generation = then.GetGeneration() },
		"a later generation":    func(r *nodev1.WakeRequest) { r.Generation = now.GetGeneration() + 1 },
		"another VM":            func(r *nodev1.WakeRequest) { r.Generation, r.Uid = now.GetGeneration(), "another" },
		"another VM by uid":     func(r *nodev1.WakeRequest) { r.Generation, r.Uid = 0, "another" },
		"forced": func(r *nodev1.WakeRequest) {
			r.Generation, r.Digest, r.Force = then.GetGeneration(), then.GetOwner().GetDigest(), true
		},
	} {
		late := &nodev1.WakeRequest{Vm: vm, Operation: "late", Uid: now.GetUid()}
		change(late)
		_, err := n2.Wake(t.Context(), late)
		if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), now.GetOwner().GetDigest()) {
			t.Errorf("%s: %v", name, err)
		}
		if rec := w.record(); !proto.Equal(rec, now) {
			t.Errorf("%s: record %v, was %v", name, rec, now)
		}
	}
	if err := w.wake(n2, "old"); err != nil {
		t.Fatal(err)
	}
	if op := w.settle("old"); op.GetPhase() != nodev1.Phase_PHASE_SUCCEEDED {
		t.Fatalf("%v", op)
	}
	w.check("old")
}

// Without a node that is lost, a VM that went back to an older snapshot goes on from that one.
func TestLostAfterARollback(t *testing.T) {
	w := newWorld(t)
	back := &nodev1.Record{Vm: vm, Owner: &nodev1.Owner{Node: "n1"}, Base: "sha256:d1", Spent: []string{"sha256:d1"},
		Snapshots: []*nodev1.SnapshotRef{{Digest: "sha256:d1"}, {Digest: "sha256:d2", Parent: "sha256:d1"}}}
	open := &nodev1.OpenRequest{Operation: &nodev1.Operation{}}
	err := w.start("n2").fillWake(t.Context(), back, &nodev1.WakeRequest{Vm: vm, LostNode: "n1"}, open)
	if err != nil || open.GetForceDigest() != "sha256:d1" {
		t.Errorf("from %s, %v", open.GetForceDigest(), err)
	}
}
