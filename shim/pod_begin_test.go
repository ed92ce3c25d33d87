package shim

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/protobuf/proto"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A VM begins from a snapshot of another one where its record says so: it is restored, and is itself from then on. A
// snapshot of another VM that the record does not call one, or calls that of a third one, is refused.
func TestPodBeginsFromASnapshotOfAnother(t *testing.T) {
	w := sleepingPod(t, true)
	w.podNotes = map[string]string{"godwit.dev/vm": "next"}
	rec := w.records.rec
	was := &nodev1.Origin{Vm: proto.CloneOf(rec.GetVm()), Uid: rec.GetUid()}
	was.Vm = &nodev1.VM{Namespace: "ns", Id: "team.web"}
	rec.Vm, rec.Uid = &nodev1.VM{Namespace: "ns", Id: "team.next"}, "0d9a8e6b-8cbb-4a0e-9a5c-0d6a7a2f4a01"
	generation := rec.GetGeneration() - 1
	list := func(origin *nodev1.Origin) {
		rec.Snapshots = []*nodev1.SnapshotRef{{Digest: rec.GetOwner().GetDigest(), Origin: origin, Generation: generation,
			Operation: w.ref().GetOperation()}}
	}
	third := &nodev1.Origin{Vm: was.GetVm(), Uid: "third"}
	for what, origin := range map[string]*nodev1.Origin{"of no VM": nil, "of a third VM": third} {
		list(origin)
		if err := errgrpc.ToNative(w.armed("setup", "web", "log")); !errdefs.IsFailedPrecondition(err) ||
			!strings.Contains(err.Error(), "wanted") {
			t.Errorf("a snapshot %s: %v", what, err)
		}
	}
	list(was)
	w.must("wake", w.armed("setup", "web", "log"))
	vm, err := w.service.current()
	w.must("find VM", err)
	if !eventually(func() bool { return vm.inState(Running) }) {
		t.Fatalf("the VM is %s", vm.state)
	}
	if s := vm.spec(); vm.id != "team.next" || s.ID != vm.id || s.UID != rec.GetUid() || s.Namespace != vm.namespace {
		t.Errorf("it is VM %s, and its Spec of %s/%s, uid %s", vm.id, s.Namespace, s.ID, s.UID)
	}
}
