//go:build integration

package control

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
)

// cordon has a node take no pods, or take them again.
func (w *world) cordon(name string, cordoned bool) {
	w.t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := w.api.Patch(w.t.Context(), node, client.RawPatch(types.MergePatchType,
		fmt.Appendf(nil, `{"spec":{"unschedulable":%v}}`, cordoned))); err != nil {
		w.t.Fatal(err)
	}
}

// A VM that is wanted on a cordoned node, as on the one that it was drained from, stays Ready where it is. It moves
// once that node takes pods again.
func TestWantedOnACordonedNode(t *testing.T) {
	w := newWorld(t)
	w.create("cordoned")
	w.cordon("b", true)
	w.wants("cordoned", `"nodeName":"b"`)
	w.until("cordoned", "waits for its node, and is Ready", func(vm *v1alpha1.VirtualMachine) bool {
		c := meta.FindStatusCondition(vm.Status.Conditions, decide.CondProgressing)
		return c != nil && c.Reason == string(decide.ReasonUnschedulable) &&
			meta.IsStatusConditionTrue(vm.Status.Conditions, decide.CondReady)
	})
	if orders := w.orders("cordoned"); len(orders) > 0 {
		t.Errorf("%d orders of a VM whose node takes no pods", len(orders))
	}
	w.cordon("b", false)
	w.running("cordoned", "b")
}
