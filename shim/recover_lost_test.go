package shim

import (
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/shim/journal"
)

// A VM whose record has gone on without its node ends, and no other one: the shim reads the record itself, and what it
// cannot read ends nothing (I1). Its interfaces stay silent, also when another process gives them back: its addresses
// are in use.
func TestEndOfAVMWhoseRecordWentOn(t *testing.T) {
	for name, tt := range map[string]struct {
		change  func(w *world)
		refused func(error) bool
	}{
		"elsewhere": {func(w *world) { w.records.rec.Owner = &nodev1.Owner{Node: "b"} }, nil},
		"asleep":    {func(w *world) { w.records.rec.Owner = &nodev1.Owner{Digest: "sha256:aa"} }, nil},
		"in a capture": {func(w *world) {
			_, err := w.capture()
			w.must("capture", err)
			w.records.rec.Owner, w.records.rec.Operation = &nodev1.Owner{Node: "b"}, nil
		}, nil},
		"unread": {func(w *world) {
			w.faults.at("get", func() error { return errdefs.ErrUnavailable })
		}, errdefs.IsUnavailable},
		"its own": {func(w *world) { w.records.rec.Owner = &nodev1.Owner{Node: "a"} }, errdefs.IsFailedPrecondition},
		"another VM's": {func(w *world) {
			w.records.rec.Owner, w.records.rec.Uid = &nodev1.Owner{Node: "b"}, "other"
		}, errdefs.IsFailedPrecondition},
		"settled after a copy, under a lower number": {func(w *world) {
			w.records.rec.Owner, w.records.rec.Incarnation = &nodev1.Owner{Node: "b"}, 1_800_000_000
			vm, _ := w.service.current()
			w.must("claim", vm.write(func(j *journal.Journal) { j.Generation += 2 }))
		}, nil},
		"nobody can say whose it is": {func(w *world) {
			w.records.rec.Owner, w.records.rec.Rivals = &nodev1.Owner{Node: "b"}, true
		}, errdefs.IsFailedPrecondition},
		"late order": {func(w *world) {
			w.records.rec.Owner = &nodev1.Owner{Node: "b"}
			vm, _ := w.service.current()
			w.must("claim", vm.write(func(j *journal.Journal) { j.Generation += 2 }))
		}, errdefs.IsFailedPrecondition},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).running()
			tt.change(w)
			w.records.rec.Generation++
			_, err := w.machineService().End(t.Context(), &machinev1.EndRequest{Generation: w.records.rec.GetGeneration(),
				Reason: "node b owns it"})
			err = errgrpc.ToNative(err)
			vm, _ := w.service.current()
			if tt.refused != nil {
				if !tt.refused(err) || vm.inState(Stopped) {
					t.Errorf("end = %v, VM is %s", err, vm.state)
				}
				return
			}
			w.must("end", err)
			<-vm.owner.init.done
			if !vm.inState(Stopped) {
				t.Errorf("VM is %s", vm.state)
			}
			j, err := journal.Read(vm.dir)
			w.must("read journal", err)
			w.must("delete", w.delete())
			if w.net.left == "" || w.net.detached != "" {
				t.Errorf("delete: left in silence is %q, given back %q", w.net.left, w.net.detached)
			}
			w.net.left = ""
			w.must("reclaim after a dead shim", reclaim(t.Context(), w.host(), filepath.Join(t.TempDir(), "vm"),
				&journal.Journal{Phase: j.Phase, Reassigned: j.Reassigned, Resources: journal.Resources{NetNS: "/run/netns/web",
					Links: j.Links}}))
			if w.net.left == "" || w.net.detached != "" {
				t.Errorf("reclaim: left in silence is %q, given back %q", w.net.left, w.net.detached)
			}
		})
	}
}
