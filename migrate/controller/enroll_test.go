package controller_test

import (
	"errors"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/api/record"
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
		"no uuid": {"../x", "b"}, "not its canonical form": {"{" + uid + "}", "b"},
		"no uid": {"", "b"}} {
		if rec, err := ensure("evil", bad[0], bad[1]); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v, %v", name, rec, err)
		}
	}
}

// Who names a uid alone gets the record of that VM. An object that was made again under its name is another VM: its
// record is not made, and the one that is there is not taken over. The uid of a removed record is never given again.
func TestEnsureOfOneVM(t *testing.T) {
	st, err := store.Open(t.TempDir() + "/records.db")
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	s := controller.New(st)
	vm, first, second := &nodev1.VM{Namespace: "k8s.io", Id: "ns.web"}, uuid.NewString(), uuid.NewString()
	ensure := func(uid string) (*nodev1.Record, error) {
		return s.Ensure(t.Context(), &nodev1.EnsureRequest{Vm: vm, Uid: uid})
	}
	for range 2 { // the second time its answer was lost
		rec, err := ensure(first)
		if err != nil || rec.GetUid() != first || rec.GetOwner() != nil || rec.GetGeneration() != 0 {
			t.Fatalf("%v, %v", rec, err)
		}
	}
	owned, err := s.Own(t.Context(), &nodev1.OwnRequest{Vm: vm, Node: "a", Uid: first})
	if err != nil {
		t.Fatal(err)
	}
	if rec, err := ensure(first); err != nil || !proto.Equal(rec, owned) {
		t.Errorf("it runs by now: %v, %v", rec, err)
	}
	var held *record.HeldError
	if rec, err := ensure(second); !errors.As(err, &held) || held.Record.GetUid() != first {
		t.Errorf("made again: %v, %v", rec, err)
	}
	if rec, err := s.Get(t.Context(), &nodev1.GetRequest{Vm: vm}); err != nil || !proto.Equal(rec, owned) {
		t.Errorf("the record is %v, %v", rec, err)
	}
	node := controller.WithPeer(t.Context(), "a")
	for _, uid := range []string{first, second} {
		if _, err := s.Ensure(node, &nodev1.EnsureRequest{Vm: vm, Uid: uid}); !errdefs.IsPermissionDenied(err) {
			t.Errorf("a node: %v", err)
		}
	}
	if rec, err := s.Ensure(node, &nodev1.EnsureRequest{Vm: vm}); err != nil || rec.GetUid() != first {
		t.Errorf("a shim, which names no uid: %v, %v", rec, err)
	}
	if _, err := s.Disown(t.Context(), &nodev1.DisownRequest{Vm: vm, Node: "a", Generation: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Remove(t.Context(), &nodev1.RemoveRequest{Vm: vm, Uid: first}); err != nil {
		t.Fatal(err)
	}
	if rec, err := ensure(first); !errdefs.IsInvalidArgument(err) {
		t.Errorf("removed: %v, %v", rec, err)
	}
	if rec, err := ensure(second); err != nil || rec.GetUid() != second || rec.GetOwner() != nil {
		t.Errorf("the next one: %v, %v", rec, err)
	}
}
