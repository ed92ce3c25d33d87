//go:build integration

package authority_test

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/apitest"
)

// TestStatusPolicy: the operator alone says which record a VirtualMachine has. One who may do everything in the cluster
// else changes the rest of a status.
func TestStatusPolicy(t *testing.T) {
	makes(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "status-writer"}})
	makes(t, &rbac.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "status-writer"},
		RoleRef:  rbac.RoleRef{APIGroup: rbac.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbac.Subject{{Kind: rbac.ServiceAccountKind, Namespace: system, Name: "status-writer"}}})
	vm := &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "policed"}}
	vm.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "localhost/x"}}
	makes(t, vm)
	writes := func(c client.Client, text string) error {
		return c.Status().Patch(t.Context(), vm.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(text)))
	}
	somebody, op := clientOf(t, as(t, "status-writer", nil)), clientOf(t, as(t, controller, nil))
	const uid = `{"status":{"recordUID":"s1.worker"}}`
	apitest.Eventually(t, "a refusal", func() (bool, error) {
		err := writes(somebody, uid)
		return err != nil && strings.Contains(err.Error(), "operator alone"), err
	})
	status := vm.DeepCopy()
	status.Status.RecordUID = "s1.worker"
	update := func(ctx context.Context) error { return op.Status().Update(ctx, status) }
	allowed(t, map[string]error{
		"the rest of a status": writes(somebody, `{"status":{"phase":"Running"}}`),
	}, nil)
	if err := clientOf(t, server.REST()).Get(t.Context(), client.ObjectKeyFromObject(vm), status); err != nil {
		t.Fatal(err)
	}
	status.Status.RecordUID = "s1.worker"
	allowed(t, map[string]error{"the operator": update(t.Context())}, nil)
	allowed(t, map[string]error{"another uid": writes(somebody, `{"status":{"recordUID":"s1.main"}}`),
		"none": writes(somebody, `{"status":null}`), "a phase": writes(somebody, `{"status":{"phase":"Lost"}}`)},
		map[string]string{"another uid": "operator alone", "none": "operator alone"})
}
