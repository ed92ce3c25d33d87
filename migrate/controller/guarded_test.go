package controller_test

import (
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"
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
// does so for it. The controller's own order does.
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

// move is an order of the controller by which the VM goes from its node to another one.
func (r *restored) move(rec *nodev1.Record, to string) *nodev1.Record {
	r.t.Helper()
	op := &nodev1.Operation{Id: "m", Vm: rec.GetVm(), Kind: nodev1.Kind_KIND_MIGRATE, Attempt: 1, Destination: to,
		Source: rec.GetOwner().GetNode(), Generation: rec.GetGeneration()}
	_, err := r.records.Open(r.t.Context(), &nodev1.OpenRequest{Vm: rec.GetVm(), Operation: op})
	const digest = "stream:m"
	for _, phase := range []nodev1.Phase{nodev1.Phase_PHASE_PREPARING, nodev1.Phase_PHASE_TRANSFERRING,
		nodev1.Phase_PHASE_SWITCHING} {
		if err == nil {
			_, err = r.records.Advance(r.t.Context(), &nodev1.AdvanceRequest{Vm: rec.GetVm(), Operation: "m", Attempt: 1,
				Generation: rec.GetGeneration(), Phase: phase, Digest: digest})
		}
	}
	receipt := record.Receipt{Operation: "m", Attempt: 1, Generation: rec.GetGeneration(), Digest: digest, Stopped: true}
	if err == nil {
		rec, err = r.records.Commit(r.t.Context(), &nodev1.CommitRequest{Vm: rec.GetVm(), Operation: "m", Attempt: 1,
			Generation: rec.GetGeneration(), Owner: &nodev1.Owner{Node: to}, Receipt: receipt.String()})
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return rec
}

// Neither a move, which the node that has the VM by its word can order, nor a boot elsewhere ends the guard: the VM of
// the next node is the one that the first has given it. A person ends it, on the controller.
func TestAGuardEndsByAnOrderOfTheControllerAlone(t *testing.T) {
	for name, next := range map[string]func(r *restored, rec *nodev1.Record) *nodev1.Record{
		"a boot": func(r *restored, rec *nodev1.Record) *nodev1.Record { return r.boot(rec.GetVm(), "c") },
		"a boot of the copy's node": func(r *restored, rec *nodev1.Record) *nodev1.Record {
			return r.boot(rec.GetVm(), "a")
		},
		"a move": func(r *restored, rec *nodev1.Record) *nodev1.Record {
			return r.move(r.boot(rec.GetVm(), "b"), "c")
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRestored(t)
			rec := next(r, r.claimed(r.copied("slept"), "OWN"))
			node := rec.GetOwner().GetNode()
			trim := &nodev1.TrimRequest{Vm: rec.GetVm(), Digest: "sha256:1"}
			if _, err := r.records.Trim(r.as(node), trim); !errdefs.IsFailedPrecondition(err) {
				t.Errorf("a rule of %s: %v", node, err)
			}
			unpin := &nodev1.PinRequest{Vm: rec.GetVm(), Digest: "sha256:1", Pinned: new(bool)}
			if _, err := r.records.Pin(r.as(node), unpin); !errdefs.IsPermissionDenied(err) {
				t.Errorf("an unpin of %s: %v", node, err)
			}
			if _, err := r.records.Pin(t.Context(), unpin); err != nil {
				t.Errorf("an unpin of the controller: %v", err)
			}
			for _, ref := range r.get(rec.GetVm()).GetSnapshots() {
				if ref.GetGuarded() != (ref.GetDigest() == "sha256:2") {
					t.Errorf("after sha256:1 was unpinned: %v", ref)
				}
			}
		})
	}
}

// A node whose VM it was in the copy deletes as before.
func TestNoGuardOfTheCopysOwnNode(t *testing.T) {
	r := newRestored(t)
	rec := r.copied("own")
	r.restore()
	r.report("a", newer(rec))
	r.report("b")
	r.report("c")
	r.settle()
	if now := r.get(rec.GetVm()); now.GetOwner().GetNode() != "a" || now.GetSnapshots()[0].GetGuarded() {
		t.Errorf("node a had it: %v", now)
	}
}
