package node

import (
	"context"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/store/storetest"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A VM of a node that never was is removed by its name. One of a node that is heard is not, nor
// one of a node of which that cannot be told.
func TestForgetOfALostNode(t *testing.T) {
	vm := &nodev1.VM{Namespace: "default", Id: "web"}
	for name, c := range map[string]struct {
		up   bool
		err  error
		want func(error) bool
	}{
		"gone": {want: func(err error) bool { return err == nil }}, "heard": {up: true, want: errdefs.IsFailedPrecondition},
		"unknown": {err: errdefs.ErrUnavailable, want: errdefs.IsUnavailable},
	} {
		st := storetest.NewMemory()
		if _, err := st.Apply(t.Context(), vm, 0,
			transition.Change{Record: &nodev1.Record{Vm: vm, Uid: "u", Owner: &nodev1.Owner{Node: "absent"},
				Generation: 1}}); err != nil {
			t.Fatal(err)
		}
		records := controller.New(st)
		s := &Service{Config: &config.Config{Node: "first"}, Records: records,
			Up: func(_ context.Context, node string) (bool, error) {
				return c.up && node == "absent", c.err
			}}
		_, err := s.Forget(t.Context(), &nodev1.ForgetRequest{Vm: vm, Force: true, KeepSnapshots: true, LostNode: "absent"})
		if !c.want(err) {
			t.Errorf("%s: %v", name, err)
		}
		_, err = records.Get(t.Context(), &nodev1.GetRequest{Vm: vm})
		if gone := errdefs.IsNotFound(err); gone != (name == "gone") {
			t.Errorf("%s: the record is %v", name, err)
		}
	}
}

// A claim of this node of which nothing is left is no reason to refuse a removal by force. That it cannot be given up
// is one, and without force it is not asked.
func TestForgetGivesUpAClaim(t *testing.T) {
	vm := &nodev1.VM{Namespace: "default", Id: "web"}
	for name, c := range map[string]struct {
		force, gone bool
		err         error
		want        func(error) bool
	}{
		"nothing is left": {force: true, gone: true, want: func(err error) bool { return err == nil }},
		"without force":   {gone: true, want: errdefs.IsFailedPrecondition},
		"it is here":      {force: true, want: errdefs.IsFailedPrecondition},
		"no answer":       {force: true, err: errdefs.ErrUnavailable, want: errdefs.IsUnavailable},
	} {
		st := storetest.NewMemory()
		if _, err := st.Apply(t.Context(), vm, 0, transition.Change{Record: &nodev1.Record{Vm: vm, Uid: "u",
			Owner: &nodev1.Owner{Node: "first"}, Generation: 1}}); err != nil {
			t.Fatal(err)
		}
		records := controller.New(st)
		s := &Service{Config: &config.Config{Node: "first"}, Records: records,
			GiveUp: func(ctx context.Context, rec *nodev1.Record) error {
				if !c.gone {
					return c.err
				}
				_, err := records.Disown(ctx, &nodev1.DisownRequest{Vm: vm, Node: "first", Generation: 1, Uid: rec.GetUid()})
				return err
			}}
		_, err := s.Forget(t.Context(), &nodev1.ForgetRequest{Vm: vm, Force: c.force, KeepSnapshots: true})
		if !c.want(err) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err = records.Get(t.Context(), &nodev1.GetRequest{Vm: vm}); errdefs.IsNotFound(err) != (c.force && c.gone) {
			t.Errorf("%s: the record is %v", name, err)
		}
	}
}
