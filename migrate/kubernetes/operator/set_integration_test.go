//go:build integration

package operator

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/apitest"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A set makes its VMs, and its deleted member has the same record.
func TestSetOnAServer(t *testing.T) {
	start(t)
	n := newNode(t)
	set := &v1alpha1.VirtualMachineSet{ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "default"}}
	for _, m := range []string{"main", "worker"} {
		role := v1alpha1.RoleMember
		if m == "main" {
			role = v1alpha1.RoleMain
		}
		set.Spec.Members = append(set.Spec.Members, v1alpha1.SetMember{Name: m, Role: role,
			Spec: newVM("").Spec.VirtualMachineSettings})
	}
	create(t, set)
	n.boot(t, podIs(t, "s-main-g1-a0", true), "a")
	worker := podIs(t, "s-worker-g1-a0", true)
	apitest.Eventually(t, "the member's record hangs on the set", func() (bool, error) {
		rec, err := n.service.Get(t.Context(), &nodev1.GetRequest{Vm: vmOf("default.s-worker")})
		return rec.GetUid() == string(set.UID)+".worker", err
	})
	first, _ := get(t, "s-worker", &v1alpha1.VirtualMachine{})
	n.boot(t, worker, "a")
	if err := api().Delete(t.Context(), newVM("s-worker")); err != nil {
		t.Fatal(err)
	}
	apitest.Eventually(t, "its pod is deleted", func() (bool, error) {
		p, _ := get(t, worker.Name, &corev1.Pod{})
		return p.DeletionTimestamp != nil, nil
	})
	n.end(t, "s-worker", "a", worker.Name)
	second := podIs(t, "s-worker-g3-a0", true) // of the same record: its generation goes on
	if metav1.GetControllerOf(second).UID == first.UID ||
		second.Labels["godwit.dev/record-uid"] != string(set.UID)+".worker" {
		t.Errorf("pod %v", second.ObjectMeta)
	}
	if err := api().Delete(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	remove(t, n, "s-main", "a", "s-main-g1-a0") // garbage collection deletes them elsewhere
	remove(t, n, "s-worker", "", "s-worker-g3-a0")
}
