package controller_test

import (
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/store/storetest"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// No node says which snapshots stay, or from what a VM begins. What stays is in no list of deletions, and no node
// clears it: not the one that made it either.
func TestHeldIsTheControllers(t *testing.T) {
	st := storetest.NewMemory()
	s, node := controller.New(st), controller.WithPeer(t.Context(), "a")
	rec := &nodev1.Record{Vm: web, Uid: "u1", Home: "a", Generation: 3, Snapshots: []*nodev1.SnapshotRef{
		{Digest: "sha256:1", Operation: "s1", Repository: "r/u1", Node: "a"},
		{Digest: "sha256:2", Operation: "s2", Repository: "r/u1", Node: "a"}}}
	if _, err := st.Apply(t.Context(), web, 0, transition.Change{Record: rec}); err != nil {
		t.Fatal(err)
	}
	remove := &nodev1.RemoveRequest{Vm: web, Uid: "u1", DropSnapshots: true, Hold: []string{"s1"}}
	if _, err := s.Remove(node, remove); !errdefs.IsPermissionDenied(err) {
		t.Errorf("a node says what stays: %v", err)
	}
	if _, err := s.Ensure(node, &nodev1.EnsureRequest{Vm: &nodev1.VM{Namespace: "default", Id: "next"},
		RestoreFrom: &nodev1.RestoreFrom{Vm: web, Operation: "s1", Id: "i"}}); !errdefs.IsPermissionDenied(err) {
		t.Errorf("a node says from what a VM begins: %v", err)
	}
	if _, err := s.Remove(t.Context(), remove); err != nil {
		t.Fatal(err)
	}
	for what, req := range map[string]*nodev1.OwedRequest{"all": {}, "of the VM": {Vm: web}, "of the node": {Payer: "a"}} {
		if all, err := s.Owed(t.Context(), req); err != nil || len(all.GetOwed()) != 1 ||
			all.GetOwed()[0].GetSnapshot().GetOperation() != "s2" {
			t.Errorf("deletions %s: %v, %v", what, all.GetOwed(), err)
		}
	}
	if _, err := s.Clear(node, &nodev1.ClearRequest{Vm: web, Repository: "r/u1", Digest: "sha256:1"}); err != nil {
		t.Errorf("clear what is not to be deleted: %v", err)
	}
	held := 0
	state, err := st.Load(t.Context(), web, transition.Asked{PendingDeletions: true})
	for _, o := range state.PendingDeletions {
		if o.GetHold() != nil {
			held++
		}
	}
	if err != nil || held != 1 {
		t.Errorf("%d snapshots are held: %v, %v", held, state.PendingDeletions, err)
	}
}
