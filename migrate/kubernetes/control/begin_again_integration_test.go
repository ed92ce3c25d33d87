//go:build integration

package control

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/apitest"
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
