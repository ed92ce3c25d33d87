package controller_test

import (
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/store"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// The first uid is answered that no other VM has, and none had whose record was removed. The VM's own counts as unused.
func TestFirstUnused(t *testing.T) {
	st, err := store.Open(t.TempDir() + "/records.db")
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	s := controller.New(st)
	uids := map[string]string{}
	for _, id := range []string{"has", "had"} {
		vm := &nodev1.VM{Namespace: "default", Id: id}
		rec, err := s.Ensure(t.Context(), &nodev1.EnsureRequest{Vm: vm})
		if err == nil {
			rec, err = s.Own(t.Context(), &nodev1.OwnRequest{Vm: vm, Node: "a", Uid: rec.GetUid(),
				Generation: rec.GetGeneration()})
		}
		if err != nil {
			t.Fatal(err)
		}
		uids[id] = rec.GetUid()
		if id == "had" {
			_, err = s.Disown(t.Context(), &nodev1.DisownRequest{Vm: vm, Node: "a", Generation: rec.GetGeneration()})
			if err == nil {
				_, err = s.Remove(t.Context(), &nodev1.RemoveRequest{Vm: vm})
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	vm := &nodev1.VM{Namespace: "default", Id: "new"}
	others := map[string]bool{uids["has"]: true}
	got, err := s.FirstUnused(t.Context(), vm, []string{uids["has"], uids["had"], "free", "also"}, others)
	if err != nil || got != "free" {
		t.Errorf("uid %q, %v", got, err)
	}
	got, err = s.FirstUnused(t.Context(), vm, []string{uids["had"], uids["has"]}, others)
	if !errdefs.IsAlreadyExists(err) {
		t.Errorf("uid %q, %v", got, err)
	}
	vm.Id = "has"
	if got, err = s.FirstUnused(t.Context(), vm, []string{uids["has"]}, nil); err != nil || got != uids["has"] {
		t.Errorf("its own uid: %q, %v", got, err)
	}
}
