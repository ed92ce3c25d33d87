//go:build integration

package operator

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/apitest"
)

// says writes the status of a pod as its node does.
func says(t *testing.T, name, image string, addresses ...string) {
	t.Helper()
	apitest.Eventually(t, "the status of the pod is written", func() (bool, error) {
		pod, _ := get(t, name, &corev1.Pod{})
		pod.Status.Phase, pod.Status.PodIP, pod.Status.PodIPs = corev1.PodRunning, addresses[0], nil
		for _, ip := range addresses {
			pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: ip})
		}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", Image: "m:1", ImageID: image,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
		err := api().Status().Update(t.Context(), pod)
		return err == nil, err
	})
}

// TestAddressesAreSeenOnce: of a VM that keeps its addresses those are written down that its node says first. What the
// node says afterwards changes nothing. An address that another pod has is written down of no VM, and an event says so.
func TestAddressesAreSeenOnce(t *testing.T) {
	start(t)
	n := newNode(t)
	create(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "victim"}, Spec: corev1.PodSpec{
		NodeName: "b", Containers: []corev1.Container{{Name: "main", Image: "m:1"}}}})
	defer n.forget(t, "victim")
	says(t, "victim", "m@sha256:1", "10.0.0.9")
	keeps := func(name string) {
		t.Helper()
		vm := newVM(name)
		vm.Spec.Network = v1alpha1.NetworkKeep
		create(t, vm)
		n.boot(t, podIs(t, name+"-g1-a0", true), "a")
	}
	noted := func(name, want string) {
		t.Helper()
		apitest.Eventually(t, "what is written down of "+name, func() (bool, error) {
			all := &v1alpha1.VMRecordList{}
			if err := api().List(t.Context(), all); err != nil {
				return false, err
			}
			for _, r := range all.Items {
				if r.Name == "default."+name {
					return strings.Contains(r.Annotations["godwit.dev/ran"], want), nil
				}
			}
			return false, nil
		})
	}
	keeps("honest")
	says(t, "honest-g1-a0", "m@sha256:1", "10.0.0.5")
	noted("honest", `"addresses":["10.0.0.5"]`)
	says(t, "honest-g1-a0", "m@sha256:2", "10.0.0.8") // the image shows that it was looked at
	noted("honest", `"m@sha256:2"},"addresses":["10.0.0.5"]`)
	keeps("thief")
	says(t, "thief-g1-a0", "m@sha256:1", "10.0.0.9")
	noted("thief", `"m@sha256:1"},"of":`)
	apitest.Eventually(t, "the event", func() (bool, error) {
		all := &corev1.EventList{}
		err := api().List(t.Context(), all)
		var said []string
		for _, e := range all.Items {
			said = append(said, e.Reason+": "+e.Message)
			if e.Reason == "AddressOfAnother" && strings.Contains(e.Message, "10.0.0.9") &&
				strings.Contains(e.Message, "default/victim") {
				return true, nil
			}
		}
		return false, errors.Join(err, fmt.Errorf("events: %s", said))
	})
}
