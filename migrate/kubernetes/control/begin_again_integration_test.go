//go:build integration

package control

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/apitest"
	"godwit.dev/godwit/migrate/kubernetes/store"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A VM that is made again under its name begins from a snapshot of what it was. It may sleep first.
func TestBeginsUnderTheSameName(t *testing.T) {
	w := newWorld(t)
	w.create("again")
	snap := w.snapshot("of-again", "again")
	w.delete(machine("again"))
	if ready, err := w.isReady(snap); !ready {
		t.Errorf("a VMSnapshot whose VM was deleted: %v", err)
	}
	w.begins("again", "of-again", func(vm *v1alpha1.VirtualMachine) {
		vm.Spec.OperatingMode = v1alpha1.ModeHibernated
	})
	w.until("again", "sleeps in the snapshot", func(vm *v1alpha1.VirtualMachine) bool {
		return vm.Status.Phase == v1alpha1.VMHibernated && vm.Status.Owner.Digest == digest
	})
	w.wants("again", `"operatingMode":"Running"`)
	w.begun("again", snap)
	w.delete(machine("again"))
	if w.owes(snap) {
		t.Error("the snapshot is to be deleted with the second VM")
	}
	w.begins("again", "of-again") // the name had two VMs by now
	w.begun("again", snap)
	w.delete(machine("again"))
	w.create("again")
	w.delete(machine("again"))
	w.begins("another", "of-again")
	w.begun("another", snap)
	w.delete(machine("another"))
	w.delete(snap)
	if !w.owes(snap) {
		t.Error("the snapshot is not to be deleted")
	}
}

// A VM begins with the images that ran when the snapshot was taken. Its source has booted others since.
func TestBeginsWithItsImages(t *testing.T) {
	w := newWorld(t)
	w.create("newer")
	snap := w.snapshot("of-newer", "newer")
	w.wants("newer", `"operatingMode":"Stopped"`)
	w.until("newer", "is stopped", func(vm *v1alpha1.VirtualMachine) bool {
		return vm.Status.Phase == v1alpha1.VMStopped
	})
	w.mu.Lock()
	w.boots = "m@sha256:3333333333333333333333333333333333333333333333333333333333333333"
	w.mu.Unlock()
	w.wants("newer", `"operatingMode":"Running"`)
	w.running("newer", "a")
	apitest.Eventually(t, "it is written down that the VM has another image", func() (bool, error) {
		rec := &v1alpha1.VMRecord{}
		err := w.api.Get(t.Context(), types.NamespacedName{Name: "default.newer"}, rec)
		return strings.Contains(rec.Annotations["godwit.dev/ran"], w.boots), err
	})
	w.mu.Lock()
	w.boots = ""
	w.mu.Unlock()
	w.delete(machine("newer"))
	w.begins("older", "of-newer")
	w.begun("older", snap)
	w.delete(machine("older"))
	w.delete(snap)
}

// What is held and that no VMSnapshot has is forgotten, and its record ends. What a VMSnapshot has stays.
func TestHoldWithoutItsVMSnapshot(t *testing.T) {
	w := newWorld(t)
	w.create("kept")
	snap := w.snapshot("of-kept", "kept")
	w.delete(machine("kept"))
	st, err := store.Open(server.REST(), apitest.System)
	if err != nil {
		t.Fatal(err)
	}
	const operation = "3f0c6f0e-0000-4000-8000-000000000001"
	vm := vmNamed("default.forgotten")
	rec, err := st.Apply(t.Context(), vm, 0, transition.Change{Record: &nodev1.Record{Vm: vm, Uid: "forgotten-1",
		Generation: 1, Snapshots: []*nodev1.SnapshotRef{{Digest: digest, Operation: operation, Repository: "r/forgotten-1",
			Manual: true}}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.records.Remove(t.Context(), &nodev1.RemoveRequest{Vm: vm, Uid: rec.GetUid(), Force: true,
		DropSnapshots: true, Hold: []string{operation}, Version: rec.GetVersion()}); err != nil {
		t.Fatal(err)
	}
	w.absent(&v1alpha1.VMRecord{ObjectMeta: metav1.ObjectMeta{Name: "default.forgotten"}})
	if ready, err := w.isReady(snap); !ready {
		t.Errorf("the VMSnapshot that is there: %v", err)
	}
	w.begins("kept", "of-kept")
	w.begun("kept", snap)
	w.delete(machine("kept"))
	w.delete(snap)
}

// A VMSnapshot of a pod knows its VM when that is deleted, and its work order, too.
func TestSnapshotOfAPodOutlivesItsOrder(t *testing.T) {
	w := newWorld(t)
	w.create("podded")
	pod := w.running("podded", "a")
	snap := &v1alpha1.VMSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "of-pod", Namespace: "default"}}
	snap.Spec.Source.PodRef = &v1alpha1.PodRef{Name: pod.Name, UID: string(pod.UID)}
	if err := w.api.Create(t.Context(), snap); err != nil {
		t.Fatal(err)
	}
	content := w.orderOf(snap)
	w.capture(snap, content, "podded")
	w.delete(machine("podded"))
	w.delete(content)
	apitest.Eventually(t, "the VMSnapshot is Ready without its order", func() (bool, error) { return w.isReady(snap) })
	w.begins("after", "of-pod")
	w.begun("after", snap)
	w.delete(machine("after"))
	w.delete(snap)
	if !w.owes(snap) {
		t.Error("the snapshot is not to be deleted")
	}
}
