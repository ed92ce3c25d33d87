package controller_test

import (
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/store/storetest"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Where nodes pull no VMs, a node does not get at the checkpoints of another one's VM that has ended. It would do
// so by booting it afresh, after which the VM would be its own.
func TestOwnIsNoPull(t *testing.T) {
	for name, c := range map[string]struct {
		pull      controller.Pull
		node      string
		snapshots bool
		refused   bool
	}{
		"another node":     {controller.PullController, "b", true, true},
		"nothing to read":  {controller.PullController, "b", false, false},
		"its own":          {controller.PullController, "a", true, false},
		"any node may":     {controller.PullAny, "b", true, false},
		"the default, any": {"", "b", true, false},
	} {
		st := storetest.NewMemory()
		rec := &nodev1.Record{Vm: vmOf("ended"), Uid: "u", Home: "a"}
		if c.snapshots {
			rec.Snapshots = []*nodev1.SnapshotRef{{Digest: "sha256:aa", Repository: "reg/u", Node: "a", Checkpoint: true}}
		}
		if _, err := st.Apply(t.Context(), rec.GetVm(), 0, transition.Change{Record: rec}); err != nil {
			t.Fatal(err)
		}
		s := controller.New(st).Under(controller.Policy{Pull: c.pull})
		_, err := s.Own(controller.WithPeer(t.Context(), c.node), &nodev1.OwnRequest{Vm: rec.GetVm(), Node: c.node})
		if c.refused && !errdefs.IsPermissionDenied(err) || !c.refused && err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
