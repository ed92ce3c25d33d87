package controller_test

import (
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"

	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/store"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A record of a VM that runs is made under its uid, owned, once. The uid of another VM, or of one that was removed, is
// refused: what lies below it is not for the taking.
func TestEnsureOfARunningVM(t *testing.T) {
	st, err := store.Open(t.TempDir() + "/records.db")
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	s := controller.New(st)
	ensure := func(id, uid, node string) (*nodev1.Record, error) {
		vm := &nodev1.VM{Namespace: "default", Id: id}
		return s.Ensure(t.Context(), &nodev1.EnsureRequest{Vm: vm, Uid: uid, Node: node})
	}
	uid := uuid.NewString()
	for range 2 { // the second time its answer was lost
		rec, err := ensure("web", uid, "a")
		if err != nil || rec.GetUid() != uid || rec.GetOwner().GetNode() != "a" || rec.GetGeneration() != 1 {
			t.Fatalf("%v, %v", rec, err)
		}
	}
	if rec, err := ensure("web", uuid.NewString(), "b"); err != nil || rec.GetUid() != uid ||
		rec.GetOwner().GetNode() != "a" {
		t.Errorf("another VM of that name: %v, %v", rec, err)
	}
	removed := uuid.NewString()
	if _, err := ensure("old", removed, "a"); err != nil {
		t.Fatal(err)
	}
	old := &nodev1.VM{Namespace: "default", Id: "old"}
	if _, err := s.Disown(t.Context(), &nodev1.DisownRequest{Vm: old, Node: "a", Generation: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Remove(t.Context(), &nodev1.RemoveRequest{Vm: old}); err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string][2]string{"another's": {uid, "b"}, "a removed one's": {removed, "b"},
		"no uuid": {"../x", "b"}, "not its canonical form": {"{" + uid + "}", "b"}, "no node": {uuid.NewString(), ""},
		"no uid": {"", "b"}} {
		if rec, err := ensure("evil", bad[0], bad[1]); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v, %v", name, rec, err)
		}
	}
}
