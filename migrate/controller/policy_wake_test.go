package controller_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/store/storetest"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A VM whose record the controller's host has made is woken by that host. A node wakes those that nodes have made.
func TestOwnWakes(t *testing.T) {
	for name, test := range map[string]struct {
		madeBy   string
		ownWakes bool
		remote   bool
		refused  bool
	}{
		"of an object, by a node":     {ownWakes: true, remote: true, refused: true},
		"of an object, by the host":   {ownWakes: true},
		"of a node, by a node":        {madeBy: "b", ownWakes: true, remote: true},
		"without objects, by a node":  {remote: true},
		"without objects, by another": {madeBy: "a", remote: true},
	} {
		t.Run(name, func(t *testing.T) {
			st := storetest.NewMemory()
			rec := &nodev1.Record{Vm: vmOf("x"), Uid: "u", Generation: 2, MadeBy: test.madeBy,
				Owner: &nodev1.Owner{Digest: "sha256:aa"}, Repository: "r/u"}
			if _, err := st.Apply(t.Context(), rec.GetVm(), 0, transition.Change{Record: rec}); err != nil {
				t.Fatal(err)
			}
			ctx := t.Context()
			if test.remote {
				ctx = controller.WithPeer(ctx, "a")
			}
			_, err := controller.New(st).Under(controller.Policy{OwnWakes: test.ownWakes}).Open(ctx, &nodev1.OpenRequest{
				Vm: rec.GetVm(), Operation: &nodev1.Operation{Id: "w", Kind: nodev1.Kind_KIND_WAKE, Attempt: 1, Destination: "a",
					Generation: 2, Digest: "sha256:aa"}})
			if test.refused != errdefs.IsPermissionDenied(err) || !test.refused && err != nil ||
				test.refused && !strings.Contains(err.Error(), "operatingMode") {
				t.Errorf("the wake: %v", err)
			}
		})
	}
}

// Under some names a node makes no record. The controller's host does, and then the node finds it.
func TestReserved(t *testing.T) {
	service := controller.New(storetest.NewMemory()).Under(controller.Policy{
		Reserved: func(vm *nodev1.VM) bool { return vm.GetId() == "kept" }})
	node := controller.WithPeer(t.Context(), "a")
	if _, err := service.Ensure(node, &nodev1.EnsureRequest{Vm: vmOf("kept")}); !errdefs.IsPermissionDenied(err) {
		t.Errorf("a node makes it: %v", err)
	}
	if _, err := service.Get(t.Context(), &nodev1.GetRequest{Vm: vmOf("kept")}); !errdefs.IsNotFound(err) {
		t.Errorf("there is a record: %v", err)
	}
	if _, err := service.Ensure(node, &nodev1.EnsureRequest{Vm: vmOf("free")}); err != nil {
		t.Errorf("another name: %v", err)
	}
	made, err := service.Ensure(t.Context(), &nodev1.EnsureRequest{Vm: vmOf("kept")})
	if err != nil {
		t.Fatal(err)
	}
	if found, err := service.Ensure(node, &nodev1.EnsureRequest{Vm: vmOf("kept")}); err != nil ||
		found.GetUid() != made.GetUid() {
		t.Errorf("once it is there: %v %v", found, err)
	}
}

// A VM whose record the controller's host has made boots at a node by the controller's word alone.
func TestBoots(t *testing.T) {
	for name, test := range map[string]struct {
		madeBy, owner   string
		remote, refused bool
	}{
		"of an object, by another node": {remote: true, refused: true},
		"of an object, by the host":     {},
		"another task in its place":     {owner: "a", remote: true},
		"of a node":                     {madeBy: "b", remote: true},
	} {
		t.Run(name, func(t *testing.T) {
			st := storetest.NewMemory()
			rec := &nodev1.Record{Vm: vmOf("x"), Uid: "u", Generation: 2, MadeBy: test.madeBy}
			if test.owner != "" {
				rec.Owner = &nodev1.Owner{Node: test.owner}
			}
			if _, err := st.Apply(t.Context(), rec.GetVm(), 0, transition.Change{Record: rec}); err != nil {
				t.Fatal(err)
			}
			ctx := t.Context()
			if test.remote {
				ctx = controller.WithPeer(ctx, "a")
			}
			service := controller.New(st).Under(controller.Policy{
				Boots: func(_ context.Context, rec *nodev1.Record, node string) error {
					return fmt.Errorf("no pod of %s at %s: %w", rec.GetUid(), node, errdefs.ErrPermissionDenied)
				}})
			_, err := service.Own(ctx, &nodev1.OwnRequest{Vm: rec.GetVm(), Node: "a", Generation: 2})
			if test.refused != errdefs.IsPermissionDenied(err) || !test.refused && test.owner == "" && err != nil {
				t.Errorf("the boot: %v", err)
			}
			now, err := service.Get(t.Context(), &nodev1.GetRequest{Vm: rec.GetVm()})
			if err != nil || test.refused != (now.GetOwner() == nil) {
				t.Errorf("the record: %v %v", now, err)
			}
		})
	}
}
