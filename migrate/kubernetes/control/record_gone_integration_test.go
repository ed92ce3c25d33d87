//go:build integration

package control

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/apitest"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/store"
)

// A VM whose record is taken away by force while it sleeps does not boot. It wakes with its memory when somebody puts
// the record back from a copy.
func TestRecordTakenAwayWhileItSleeps(t *testing.T) {
	w := newWorld(t)
	w.create("bereft")
	w.wants("bereft", `"operatingMode":"Hibernated"`)
	w.until("bereft", "sleeps", func(vm *v1alpha1.VirtualMachine) bool {
		return vm.Status.Phase == v1alpha1.VMHibernated && len(w.pods("bereft")) == 0
	})
	kept := &v1alpha1.VMRecord{}
	if err := w.api.Get(t.Context(), client.ObjectKey{Name: "default.bereft"}, kept); err != nil {
		t.Fatal(err)
	}
	forced := kept.DeepCopy()
	forced.Finalizers = nil
	if err := w.api.Update(t.Context(), forced); err != nil {
		t.Fatal(err)
	}
	if err := w.api.Delete(t.Context(), forced); err != nil {
		t.Fatal(err)
	}
	w.wants("bereft", `"operatingMode":"Running"`)
	w.until("bereft", "says that its record is gone", func(vm *v1alpha1.VirtualMachine) bool {
		c := meta.FindStatusCondition(vm.Status.Conditions, decide.CondLost)
		return vm.Status.Phase == v1alpha1.VMLost && vm.Status.ObservedGeneration == vm.Generation && c != nil &&
			c.Reason == string(decide.ReasonRecordMissing)
	})
	w.wants("bereft", `"template":{"metadata":{"labels":{"changed":"yes"}}}`) // looked at once more
	w.until("bereft", "says so still, and where its memory is", func(vm *v1alpha1.VirtualMachine) bool {
		return vm.Status.Phase == v1alpha1.VMLost && vm.Status.ObservedGeneration == vm.Generation &&
			vm.Status.Owner.Digest == digest
	})
	if all := w.pods("bereft"); len(all) != 0 {
		t.Errorf("it boots in pod %s", all[0].Name)
	}
	if err := w.api.Get(t.Context(), client.ObjectKeyFromObject(kept), &v1alpha1.VMRecord{}); !store.IsAbsent(err) {
		t.Errorf("it has a new record: %v", err)
	}
	kept.ResourceVersion, kept.UID = "", ""
	if err := w.api.Create(t.Context(), kept); err != nil {
		t.Fatal(err)
	}
	w.restored(w.running("bereft", "a"), decide.ReasonWoken)
	apitest.Eventually(t, "it is not lost any more", func() (bool, error) {
		vm := &v1alpha1.VirtualMachine{}
		err := w.api.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "bereft"}, vm)
		return err == nil && vm.Status.Phase == v1alpha1.VMRunning &&
			!meta.IsStatusConditionTrue(vm.Status.Conditions, decide.CondLost), err
	})
}
