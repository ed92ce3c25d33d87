package controller_test

import (
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// copied makes a VM that sleeps in the second of its snapshots, and that node a had last.
func (r *restored) copied(id string) *nodev1.Record {
	r.t.Helper()
	at := "r/" + id
	rec := &nodev1.Record{Vm: vmOf(id), Uid: id, Owner: &nodev1.Owner{Digest: "sha256:2"}, Generation: 5, Home: "a",
		Repository: at, Snapshots: []*nodev1.SnapshotRef{
			{Digest: "sha256:1", Repository: at, Generation: 3, Node: "a", Checkpoint: true},
			{Digest: "sha256:2", Repository: at, Generation: 4, Node: "a", Pinned: true}}}
	if _, err := r.memory.Apply(r.t.Context(), rec.GetVm(), 0, transition.Change{Record: rec}); err != nil {
		r.t.Fatal(err)
	}
	return rec
}

// claimed restores the store, and has node b say that it has the VM since the copy was made.
func (r *restored) claimed(rec *nodev1.Record, phase string) *nodev1.Record {
	r.t.Helper()
	r.restore()
	h := newer(rec)
	h.Phase, h.Operation = phase, "x"
	r.report("a")
	r.report("b", h)
	r.report("c")
	r.settle()
	now := r.get(rec.GetVm())
	if now.GetHome() != "b" {
		r.t.Fatalf("node b has it not: %v", now)
	}
	if now.GetOwner().GetNode() == "b" {
		_, err := r.records.Disown(r.as("b"), &nodev1.DisownRequest{Vm: rec.GetVm(), Node: "b", Uid: rec.GetUid(),
			Generation: now.GetGeneration()})
		if err != nil {
			r.t.Fatal(err)
		}
	}
	return r.get(rec.GetVm())
}

// A node that has a VM by its word alone, since the store was put back, deletes no snapshot that the copy knew. No rule
// does so for it. The controller's own order does, and the next node is one that the controller knows.
func TestAWordDeletesNothingThatTheCopyKnew(t *testing.T) {
	for _, phase := range []string{"OWN", "PREPARED"} {
		t.Run(phase, func(t *testing.T) {
			r := newRestored(t)
			r.records.Under(controller.Policy{Pull: controller.PullController})
			rec := r.claimed(r.copied("slept"), phase)
			remove := &nodev1.RemoveRequest{Vm: rec.GetVm(), Force: true, DropSnapshots: true}
			if _, err := r.records.Remove(r.as("b"), remove); !errdefs.IsPermissionDenied(err) {
				t.Errorf("remove: %v", err)
			}
			remove.DropSnapshots = false // nothing would name them
			if _, err := r.records.Remove(r.as("b"), remove); !errdefs.IsPermissionDenied(err) {
				t.Errorf("remove the record alone: %v", err)
			}
			trim := &nodev1.TrimRequest{Vm: rec.GetVm(), Digest: "sha256:1"}
			for name, peer := range map[string]bool{"b": true, "the controller": false} {
				ctx := t.Context()
				if peer {
					ctx = r.as(name)
				}
				if _, err := r.records.Trim(ctx, trim); !errdefs.IsFailedPrecondition(err) { // as what is in use
					t.Errorf("a rule of %s: %v", name, err)
				}
			}
			trim.Ordered = true
			if _, err := r.records.Trim(r.as("b"), trim); !errdefs.IsPermissionDenied(err) {
				t.Errorf("an order of b: %v", err)
			}
			if phase == "OWN" {
				_, err := r.records.Open(r.as("b"), &nodev1.OpenRequest{Vm: rec.GetVm(), ForceDigest: "sha256:2",
					Operation: &nodev1.Operation{Id: "w", Vm: rec.GetVm(), Kind: nodev1.Kind_KIND_WAKE, Destination: "b", Attempt: 1,
						Generation: rec.GetGeneration(), Digest: "sha256:2"}})
				if !errdefs.IsPermissionDenied(err) {
					t.Errorf("a wake of b: %v", err)
				}
			}
			if owed, err := r.records.Owed(t.Context(), &nodev1.OwedRequest{}); err != nil || len(owed.GetOwed()) > 0 {
				t.Errorf("deletions: %v, %v", owed, err)
			}
			if _, err := r.records.Trim(t.Context(), trim); err != nil {
				t.Errorf("an order of the controller: %v", err)
			}
		})
	}
}

// What a node has made itself since then it may delete, and a node whose VM it was in the copy deletes as before. The
// next node that gets the VM has it by the controller's knowledge.
func TestAGuardEndsWithTheNextNode(t *testing.T) {
	r := newRestored(t)
	rec := r.claimed(r.copied("slept"), "OWN")
	rec = r.boot(rec.GetVm(), "a")
	for _, ref := range rec.GetSnapshots() {
		if ref.GetGuarded() {
			t.Errorf("node a has the VM, and %v", ref)
		}
	}
	r = newRestored(t)
	rec = r.copied("own")
	r.restore()
	r.report("a", newer(rec))
	r.report("b")
	r.report("c")
	r.settle()
	if now := r.get(rec.GetVm()); now.GetOwner().GetNode() != "a" || now.GetSnapshots()[0].GetGuarded() {
		t.Errorf("node a had it: %v", now)
	}
}
