//go:build integration

package operator

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/apitest"
	"godwit.dev/godwit/migrate/kubernetes/decide"
)

// No node can run the template of a VM: it asks for a label, an architecture or memory that no node has. The VM says so
// in a condition and in an event, with the remedy. Once the template is edited, its pod is made of the new one. A pod
// that a node has got meanwhile is left.
func TestTemplateThatNoNodeRuns(t *testing.T) {
	start(t)
	n := newNode(t)
	for name, template := range map[string]string{
		"label":  `{"nodeSelector":{"example.com/none":"x"}}`,
		"arch":   `{"nodeSelector":{"kubernetes.io/arch":"pdp11"}}`,
		"memory": `{"containers":[{"name":"main","image":"m:1","resources":{"requests":{"memory":"64Ti"}}}]}`,
	} {
		vm := newVM("noroom-" + name)
		create(t, vm)
		pod := podIs(t, vm.Name+"-g1-a0", true)
		edit(t, vm.Name, `{"spec":{"template":{"spec":`+template+`}}}`)
		first := madeOf(t, pod.Name, pod.UID)
		unscheduled(t, pod.Name)
		apitest.Eventually(t, name+": the VM says it", func() (bool, error) {
			vm, _ = get(t, vm.Name, &v1alpha1.VirtualMachine{})
			c := meta.FindStatusCondition(vm.Status.Conditions, decide.CondCapacity)
			return c != nil && c.Reason == string(decide.ReasonUnschedulable) && strings.Contains(c.Message, "0/2 nodes") &&
				strings.Contains(c.Message, "edit spec.template"), fmt.Errorf("%+v", vm.Status)
		})
		apitest.Eventually(t, name+": an event says it", func() (bool, error) {
			all := &eventsv1.EventList{}
			err := api().List(t.Context(), all, client.InNamespace("default"))
			for _, e := range all.Items {
				if e.Regarding.UID == vm.UID && e.Reason == "Unschedulable" && strings.Contains(e.Note, "edit spec.template") {
					return true, nil
				}
			}
			return false, err
		})
		edit(t, vm.Name, `{"spec":{"template":{"spec":{"nodeSelector":null,"containers":[{"name":"main","image":"m:2"}]}}}}`)
		last := madeOf(t, pod.Name, first.UID)
		if last.Spec.Containers[0].Image != "m:2" || len(last.Spec.NodeSelector) > 0 {
			t.Errorf("%s: the pod is of %+v", name, last.Spec)
		}
		n.boot(t, last, "a")
		inPhase(t, vm.Name, v1alpha1.VMRunning)
		edit(t, vm.Name, `{"spec":{"template":{"spec":{"nodeSelector":{"example.com/none":"x"}}}}}`)
		apitest.Eventually(t, name+": the VM tells the drift", func() (bool, error) {
			vm, _ = get(t, vm.Name, &v1alpha1.VirtualMachine{})
			return meta.IsStatusConditionTrue(vm.Status.Conditions, decide.CondTemplateDrift), nil
		})
		if now, _ := get(t, pod.Name, &corev1.Pod{}); now.UID != last.UID || now.DeletionTimestamp != nil {
			t.Errorf("%s: the pod of a VM that runs was ended", name)
		}
		remove(t, n, vm.Name, "a", pod.Name)
	}
}

func edit(t *testing.T, name, patch string) {
	t.Helper()
	if err := api().Patch(t.Context(), newVM(name), client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		t.Fatal(err)
	}
}

// madeOf waits for another pod of the name.
func madeOf(t *testing.T, name string, before types.UID) (pod *corev1.Pod) {
	t.Helper()
	apitest.Eventually(t, "pod "+name+" is made anew", func() (bool, error) {
		var there bool
		pod, there = get(t, name, &corev1.Pod{})
		return there && pod.UID != before && pod.DeletionTimestamp == nil, nil
	})
	return pod
}

// unscheduled says what a scheduler says.
func unscheduled(t *testing.T, name string) {
	t.Helper()
	apitest.Eventually(t, "the scheduler says it", func() (bool, error) {
		pod, _ := get(t, name, &corev1.Pod{})
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.PodScheduled,
			Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/2 nodes are available"})
		err := api().Status().Update(context.WithoutCancel(t.Context()), pod)
		return err == nil, err
	})
}
