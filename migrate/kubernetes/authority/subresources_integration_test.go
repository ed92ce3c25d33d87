//go:build integration

package authority_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/migrate/kubernetes/apitest"
)

// way is one by which labels or annotations of a pod might be changed, in addition to an update of the pod itself.
type way func(ctx context.Context, c client.Client, pod *corev1.Pod, meta string) error

func merged(subresource string) way {
	return func(ctx context.Context, c client.Client, pod *corev1.Pod, meta string) error {
		return c.SubResource(subresource).Patch(ctx, pod.DeepCopy(), client.RawPatch(types.MergePatchType,
			fmt.Appendf(nil, `{"metadata":%s}`, meta)))
	}
}

// bound binds a pod by a Binding that has the label or the annotation.
func bound(send func(ctx context.Context, name string, body []byte) error) way {
	return func(ctx context.Context, _ client.Client, pod *corev1.Pod, meta string) error {
		body := fmt.Sprintf(`{"apiVersion":"v1","kind":"Binding","metadata":{"name":%q,%s,"target":{"kind":"Node",`+
			`"name":"elsewhere"}}`, pod.Name, strings.TrimPrefix(meta, "{"))
		return send(ctx, pod.Name, []byte(body))
	}
}

// TestSubresourcesOfPods: what the policies guard of a pod, no subresource of pods changes. Which of them can change
// labels or annotations at all, the API server itself shows, by who may do everything.
func TestSubresourcesOfPods(t *testing.T) {
	out, err := server.Kubectl(t.Context(), "", "apply", "-k", filepath.Join("..", "..", "..", "packaging", "kubernetes",
		"agent-sandbox"))
	if err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	makes(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "kubelet-like"}})
	makes(t, &rbac.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "kubelet-like"},
		RoleRef:  rbac.RoleRef{APIGroup: rbac.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbac.Subject{{Kind: rbac.ServiceAccountKind, Namespace: system, Name: "kubelet-like"}}})
	config := as(t, "kubelet-like", nil)
	somebody, admin := clientOf(t, config), clientOf(t, server.REST())
	post := func(c *kubernetes.Clientset, path func(string) string) way {
		return bound(func(ctx context.Context, name string, body []byte) error {
			return c.CoreV1().RESTClient().Post().AbsPath(path(name)).Body(body).Do(ctx).Error()
		})
	}
	sets := map[bool]*kubernetes.Clientset{}
	for root, cfg := range map[bool]*rest.Config{true: server.REST(), false: config} {
		if sets[root], err = kubernetes.NewForConfig(cfg); err != nil {
			t.Fatal(err)
		}
	}
	binding := func(name string) string { return "/api/v1/namespaces/default/pods/" + name + "/binding" }
	old := func(string) string { return "/api/v1/namespaces/default/bindings" }
	const label, annotation = `{"labels":{"godwit.dev/operation":"x"}}`, `{"annotations":{"godwit.dev/vm":"sbx-1"}}`
	apitest.Eventually(t, "a refusal", func() (bool, error) {
		p := pod("sub-early", "", nil)
		p.Annotations = map[string]string{"godwit.dev/vm": "sbx-1"}
		err := somebody.Create(t.Context(), p, client.DryRunAll)
		return err != nil && strings.Contains(err.Error(), "Sandbox"), err
	})
	for i, c := range []struct {
		name    string
		by      way // of somebody
		root    way // of who may do everything
		changes [2]bool
	}{
		{"status", merged("status"), merged("status"), [2]bool{true, true}},
		{"ephemeralcontainers", merged("ephemeralcontainers"), merged("ephemeralcontainers"), [2]bool{}},
		{"resize", merged("resize"), merged("resize"), [2]bool{}},
		{"binding", post(sets[false], binding), post(sets[true], binding), [2]bool{true, true}},
		{"bindings", post(sets[false], old), post(sets[true], old), [2]bool{true, true}},
	} {
		for j, meta := range []string{label, annotation} {
			of := func(name string) bool {
				now := &corev1.Pod{}
				if err := admin.Get(t.Context(), types.NamespacedName{Namespace: "default", Name: name}, now); err != nil {
					t.Fatal(err)
				}
				return now.Labels["godwit.dev/operation"]+now.Annotations["godwit.dev/vm"]+now.Annotations["any"] != ""
			}
			free := makes(t, pod(fmt.Sprintf("sub-free-%d-%d", i, j), "", nil))
			unguarded := strings.Replace(meta, "godwit.dev/vm", "any", 1)
			if err := c.root(t.Context(), admin, free, unguarded); err != nil || of(free.Name) != c.changes[j] {
				t.Errorf("%s with %s: %v, changed %t, want %t", c.name, meta, err, of(free.Name), c.changes[j])
			}
			kept := makes(t, pod(fmt.Sprintf("sub-kept-%d-%d", i, j), "", nil))
			err := c.by(t.Context(), somebody, kept, meta)
			if of(kept.Name) || c.changes[j] && (err == nil || !strings.Contains(err.Error(), "ValidatingAdmissionPolicy")) {
				t.Errorf("%s with %s by somebody: changed %t, %v", c.name, meta, of(kept.Name), err)
			}
		}
	}
}
