package engine

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

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
