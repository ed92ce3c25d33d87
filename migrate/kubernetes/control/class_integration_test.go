//go:build integration

package control

import (
	"testing"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/pods"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// The record of a VM that names a class says where its snapshots go, and sleeps there. Until the class may be used, the
// VM has no record and no pod, and says why.
func TestVMOfAClass(t *testing.T) {
	w := newWorld(t)
	vm := &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "classed", Namespace: "default"}}
	vm.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "m:1"}}
	vm.Spec.SnapshotClassName = "vmclass"
	if err := w.api.Create(t.Context(), vm); err != nil {
		t.Fatal(err)
	}
	w.until("classed", "waits for its class", func(vm *v1alpha1.VirtualMachine) bool {
		c := meta.FindStatusCondition(vm.Status.Conditions, decide.CondProgressing)
		return c != nil && c.Reason == string(decide.ReasonClassNotFound)
	})
	w.told("classed", string(decide.ReasonClassNotFound))
	if all := w.pods("classed"); len(all) != 0 {
		t.Errorf("%d pods", len(all))
	}
	keep, grace := int32(2), int32(700)
	class := &v1alpha1.VMSnapshotClass{ObjectMeta: metav1.ObjectMeta{Name: "vmclass"},
		Spec: v1alpha1.VMSnapshotClassSpec{Repository: "reg.example/vmclass", AllowedNamespaces: &metav1.LabelSelector{},
			Retention: v1alpha1.Retention{Keep: &keep}, MinGraceSeconds: &grace}}
	if err := w.api.Create(t.Context(), class); err != nil {
		t.Fatal(err)
	}
	w.running("classed", "a")
	uid := string(vm.UID)
	rec, err := w.records.Get(t.Context(), &nodev1.GetRequest{Vm: vmNamed("default.classed")})
	if err != nil || rec.GetPrefix() != "reg.example/vmclass" || rec.GetKeep() != 2 {
		t.Errorf("record %v, %v", rec, err)
	}
	if got := record.Repository(rec, ""); got != "reg.example/vmclass/"+uid {
		t.Errorf("a cold move would put its snapshot into %s", got)
	}

	// Each pod that is made from then on has the grace that the class asks for at that moment.
	w.hasGrace("classed", 700)
	w.wants("classed", `"operatingMode":"Hibernated"`)
	w.until("classed", "sleeps", func(vm *v1alpha1.VirtualMachine) bool {
		return vm.Status.Phase == v1alpha1.VMHibernated
	})
	*class.Spec.MinGraceSeconds = 900
	if err := w.api.Update(t.Context(), class); err != nil {
		t.Fatal(err)
	}
	w.wants("classed", `"operatingMode":"Running"`)
	w.running("classed", "a")
	w.hasGrace("classed", 900)
	if rec, err = w.records.Get(t.Context(), &nodev1.GetRequest{Vm: vmNamed("default.classed")}); err != nil {
		t.Fatal(err)
	}

	order := &v1alpha1.VMSnapshotContent{ObjectMeta: metav1.ObjectMeta{Name: decide.OrderName("s-1"),
		Labels: map[string]string{pods.LabelVM: "classed", pods.LabelRecordUID: uid}}}
	order.Spec.SnapshotRef = v1alpha1.NamespacedRef{Namespace: "default", Name: "s", UID: "s-1"}
	order.Spec.Source = v1alpha1.ContentSource{NodeName: "a",
		PodRef: v1alpha1.NamespacedRef{Namespace: "default", Name: "p", UID: "p-1"}}
	order.Spec.Repository = "reg.example/gold"
	if err := w.api.Create(t.Context(), order); err != nil {
		t.Fatal(err)
	}
	op := &nodev1.Operation{Id: "s-1", Prefix: "reg.example/gold"}
	if err := w.asks().Places(t.Context(), rec, op, "a"); err != nil {
		t.Error(err)
	}
	if err := w.asks().Places(t.Context(), rec, op, "b"); !errdefs.IsPermissionDenied(err) {
		t.Errorf("another node: %v", err)
	}
	op.Id = "s-2"
	if err := w.asks().Places(t.Context(), rec, op, "a"); !errdefs.IsPermissionDenied(err) {
		t.Errorf("no such order: %v", err)
	}
}

// hasGrace looks at the pod of a VM that has not ended.
func (w *world) hasGrace(name string, want int64) {
	w.t.Helper()
	var got []int64
	for _, pod := range w.pods(name) {
		if !pods.Ended(&pod) && pod.DeletionTimestamp == nil {
			got = append(got, *pod.Spec.TerminationGracePeriodSeconds)
		}
	}
	if len(got) != 1 || got[0] != want {
		w.t.Errorf("VM %s: pods with %v s, want one with %d s", name, got, want)
	}
}
