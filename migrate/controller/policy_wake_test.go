package controller_test

import (
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
