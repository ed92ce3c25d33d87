package apitest

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
)

// Clean removes all records, also those that a finalizer keeps.
func (s *Server) Clean(t testing.TB) {
	t.Helper()
	client, err := dynamic.NewForConfig(s.REST())
	if err != nil {
		t.Fatal(err)
	}
	records := client.Resource(v1alpha1.GroupVersion.WithResource("vmrecords"))
	all, err := records.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range all.Items {
		if _, err := records.Patch(t.Context(), o.GetName(), types.MergePatchType,
			[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := records.Delete(t.Context(), o.GetName(), metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}
