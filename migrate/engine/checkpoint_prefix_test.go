package engine

import (
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/controller"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// elsewhere takes a checkpoint where an order says.
func (w *world) elsewhere(e *Engine, id, prefix string) (*nodev1.Operation, error) {
	w.t.Helper()
	_, err := e.Checkpoint(w.t.Context(), &nodev1.CheckpointRequest{Vm: vm, Operation: id, Prefix: prefix})
	if err != nil {
		return nil, err
	}
	return w.settle(id), nil
}

// An order may say where a checkpoint goes. The record keeps it, the scan looks there, and the deletion finds it; the
// VM's other snapshots stay where they were.
func TestCheckpointElsewhere(t *testing.T) {
	w := newWorld(t)
	e := w.start("n1")
	op, err := w.elsewhere(e, "c1", "reg.example/gold")
	at := "reg.example/gold/" + w.uid
	if err != nil || op.GetPhase() != nodev1.Phase_PHASE_SUCCEEDED || op.GetRepository() != at {
		t.Fatalf("%v, %v", op, err)
	}
	w.take(e, "c2")
	rec := w.record()
	there, own := rec.GetSnapshots()[0], rec.GetSnapshots()[1]
	if there.GetRepository() != at || !there.GetGiven() || own.GetRepository() != "r/"+w.uid || own.GetGiven() {
		t.Errorf("snapshots %v", rec.GetSnapshots())
	}
	if all := e.retention.repositories(rec); len(all) != 2 || all[0] != "r/"+w.uid || all[1] != at {
		t.Errorf("the scan looks at %q", all)
	}
	for _, ref := range []*nodev1.SnapshotRef{there, own} {
		if mine, err := e.retention.reaches(t.Context(), ref); err != nil || !mine {
			t.Errorf("%s: reached: %t, %v", ref.GetRepository(), mine, err)
		}
	}
	for repository, given := range map[string]bool{"other.example/x/" + w.uid: false, "oci-layout:/etc/" + w.uid: true} {
		mine, err := e.retention.reaches(t.Context(), &nodev1.SnapshotRef{Repository: repository, Given: given, Node: "n2"})
		if err != nil || mine {
			t.Errorf("%s: reached: %t, %v", repository, mine, err)
		}
	}
}

// An order names no directory of a node, and nothing but a prefix of a registry. Nothing has begun then.
func TestPrefixIsRefused(t *testing.T) {
	w := newWorld(t)
	e := w.start("n1")
	for _, prefix := range []string{"oci-layout:/etc", "oci-layout:1/x", "oci-layout:x/y", "/etc", "reg.example",
		"reg.example/", "reg.example/../x", "reg.example/A", "reg.example/x y", "reg.example//x", "https://reg.example/x",
		"user@reg.example/x"} {
		if op, err := w.elsewhere(e, "c1", prefix); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v, %v", prefix, op, err)
		}
	}
	if rec := w.record(); rec.GetOperation() != nil || w.captures != 0 {
		t.Errorf("%d captures, record %v", w.captures, rec)
	}
}

// What the controller says at the beginning of a record holds for all its snapshots.
func TestRecordSaysWhereSnapshotsGo(t *testing.T) {
	w := unrecorded(t)
	const uid = "3d3c8a3e-5b0c-4a6d-9f6d-0e8a1b7c2d4f"
	first := &nodev1.EnsureRequest{Vm: vm, Uid: uid, Prefix: "reg.example/gold", Keep: 2}
	if _, err := w.records.Ensure(controller.WithPeer(t.Context(), "n1"), first); !errdefs.IsPermissionDenied(err) {
		t.Errorf("said by a node: %v", err)
	}
	rec, err := w.records.Ensure(t.Context(), first)
	if err == nil {
		rec, err = w.records.Own(t.Context(), &nodev1.OwnRequest{Vm: vm, Node: "n1", Generation: rec.GetGeneration(),
			Uid: uid})
	}
	if err != nil {
		t.Fatal(err)
	}
	w.uid, w.gens["n1"] = uid, rec.GetGeneration()
	e := w.start("n1")
	for _, id := range []string{"c1", "c2", "c3"} {
		w.take(e, id)
	}
	if err := w.hibernate(e, "h"); err != nil {
		t.Fatal(err)
	}
	if op := w.settle("h"); op.GetPhase() != nodev1.Phase_PHASE_SUCCEEDED {
		t.Fatalf("operation %v", op)
	}
	rec = w.record()
	if n := len(rec.GetSnapshots()); n != 2 || rec.GetRepository() != "reg.example/gold/"+uid {
		t.Errorf("%d snapshots, it sleeps in %s", n, rec.GetRepository())
	}
	for _, ref := range rec.GetSnapshots() {
		if ref.GetRepository() != "reg.example/gold/"+uid || !ref.GetGiven() {
			t.Errorf("snapshot %v", ref)
		}
	}
}
