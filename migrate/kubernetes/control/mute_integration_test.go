//go:build integration

package control

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/apitest"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A node answers no order, and many of its VMs are to sleep. A VM elsewhere wakes at once. The orders of the node say
// why they wait, and go on once it answers.
func TestMuteNodeHoldsNoOthersUp(t *testing.T) {
	const many, soon = 16, 5 * time.Second
	w := newWorld(t)
	w.create("free")
	w.sleeps("free")
	for i := range many {
		vm := &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("mute-", i), Namespace: "default"}}
		vm.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "m:1"}}
		if err := w.api.Create(t.Context(), vm); err != nil {
			t.Fatal(err)
		}
	}
	for i := range many {
		w.running(fmt.Sprint("mute-", i), "a")
	}
	w.fill("a")
	quiet := func(is bool) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.mute["a"] = is
	}
	quiet(true)
	for i := range many {
		w.wants(fmt.Sprint("mute-", i), `"operatingMode":"Hibernated"`)
	}
	apitest.Eventually(t, "the orders of the node that is mute are there", func() (bool, error) {
		all := 0
		for i := range many {
			all += len(w.orders(fmt.Sprint("mute-", i)))
		}
		return all == many, fmt.Errorf("%d", all)
	})
	w.wants("free", `"operatingMode":"Running"`)
	begun := time.Now()
	apitest.Eventually(t, "a VM elsewhere wakes", func() (bool, error) {
		rec := w.record("free")
		return rec.GetOperation().GetKind() == nodev1.Kind_KIND_WAKE || rec.GetOwner().GetNode() != "", nil
	})
	if took := time.Since(begun); took > soon {
		t.Errorf("it took %v to order its wake", took)
	}
	w.running("free", "b")
	apitest.Eventually(t, "an order says why it waits", func() (bool, error) {
		for _, op := range w.orders("mute-0") {
			for _, c := range op.Status.Conditions {
				if op.Status.Phase == v1alpha1.MigrationPending && strings.Contains(c.Message, "node a does not answer") {
					return true, nil
				}
			}
		}
		return false, fmt.Errorf("%+v", w.orders("mute-0"))
	})
	w.wants("mute-0", `"operatingMode":"Running"`) // it is called off, and the VM runs on
	quiet(false)
	for i := range many {
		name := fmt.Sprint("mute-", i)
		if i == 0 {
			w.running(name, "a")
			continue
		}
		w.until(name, "sleeps", func(vm *v1alpha1.VirtualMachine) bool { return vm.Status.Phase == v1alpha1.VMHibernated })
	}
	for _, op := range w.over("mute-0") {
		if op.Status.Phase != v1alpha1.MigrationFailed || op.Status.Class != "canceled" {
			t.Errorf("order %s of a VM that is to run is %s: %s", op.Name, op.Status.Phase, op.Status.Reason)
		}
	}
}

// A VM is to sleep while its node is away. The order says why it waits, and is called off when the VM is to run again.
func TestOrderToANodeThatIsAway(t *testing.T) {
	w := newWorld(t)
	w.create("away")
	w.heartbeat("a", false)
	w.wants("away", `"operatingMode":"Hibernated"`)
	var name string
	apitest.Eventually(t, "it is ordered to sleep", func() (bool, error) {
		for _, op := range w.orders("away") {
			name = op.Name
		}
		return name != "", nil
	})
	w.says(name, v1alpha1.MigrationPending, "node a has not been heard lately")
	w.wants("away", `"operatingMode":"Running"`)
	w.says(name, v1alpha1.MigrationFailed, "called off")
	w.heartbeat("a", true)
	w.running("away", "a")
}
