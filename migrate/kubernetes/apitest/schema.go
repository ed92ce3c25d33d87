package apitest

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
)

var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
	Resource: "customresourcedefinitions"}

// Downgrade has the server serve the schema of an older build: the one of a resource without a field, by its path, as
// spec.nodeName. The object with that name has the field; the schema counts once it is told without. back installs the
// schema again. The end of the test does so too.
func (s *Server) Downgrade(t *testing.T, resource, field, namespace, name string) (back func()) {
	t.Helper()
	client, err := dynamic.NewForConfig(s.REST())
	if err != nil {
		t.Fatal(err)
	}
	var objects dynamic.ResourceInterface = client.Resource(v1alpha1.GroupVersion.WithResource(resource))
	if namespace != "" {
		objects = client.Resource(v1alpha1.GroupVersion.WithResource(resource)).Namespace(namespace)
	}
	const rules = "x-kubernetes-validations"
	path := strings.Split(field, ".")
	served := func(wanted bool) {
		t.Helper()
		Eventually(t, resource+" are served with the other schema", func() (bool, error) {
			o, err := objects.Get(context.Background(), name, metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			_, there, err := unstructured.NestedFieldNoCopy(o.Object, path...)
			return there == wanted, err
		})
	}
	served(true)
	var whole any
	change := func(set func(schema map[string]any)) {
		t.Helper()
		s.change(t, client, resource, func(schema map[string]any) { set(parent(schema, path)) })
	}
	change(func(schema map[string]any) {
		whole = map[string]any{"properties": schema["properties"], "required": schema["required"], rules: schema[rules]}
		properties := map[string]any{}
		for k, v := range schema["properties"].(map[string]any) {
			if k != path[len(path)-1] {
				properties[k] = v
			}
		}
		schema["properties"] = properties
		delete(schema, "required")
		delete(schema, rules) // which may name the field
	})
	served(false)
	put := false
	back = func() {
		t.Helper()
		if put {
			return
		}
		put = true
		change(func(schema map[string]any) {
			for k, v := range whole.(map[string]any) {
				if v != nil {
					schema[k] = v
				}
			}
		})
		served(true)
	}
	t.Cleanup(back)
	return back
}

// WithoutValue has the server serve the schema of an older build: the one of a resource whose field, by its path, may
// not have a value. back installs the schema again. The end of the test does so too.
func (s *Server) WithoutValue(t *testing.T, resource, field, value string) (back func()) {
	t.Helper()
	client, err := dynamic.NewForConfig(s.REST())
	if err != nil {
		t.Fatal(err)
	}
	path := strings.Split(field, ".")
	var whole []any
	set := func(enum func(before []any) []any) {
		t.Helper()
		s.change(t, client, resource, func(schema map[string]any) {
			of := parent(schema, path)["properties"].(map[string]any)[path[len(path)-1]].(map[string]any)
			before, _ := of["enum"].([]any)
			of["enum"] = enum(before)
		})
	}
	set(func(before []any) []any {
		whole = before
		return slices.DeleteFunc(slices.Clone(before), func(v any) bool { return v == value })
	})
	put := sync.OnceFunc(func() { set(func([]any) []any { return whole }) })
	t.Cleanup(put)
	return put
}

// change writes the schema of a resource.
func (s *Server) change(t *testing.T, client dynamic.Interface, resource string, set func(schema map[string]any)) {
	t.Helper()
	Eventually(t, "the schema of "+resource+" is written", func() (bool, error) {
		crd, err := client.Resource(definitions).Get(context.Background(),
			resource+"."+v1alpha1.GroupVersion.Group, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		set(schemaOf(t, crd))
		_, err = client.Resource(definitions).Update(context.Background(), crd, metav1.UpdateOptions{})
		return err == nil, err
	})
}

// parent is the schema that has the last field of a path.
func parent(schema map[string]any, path []string) map[string]any {
	for _, name := range path[:len(path)-1] {
		schema = schema["properties"].(map[string]any)[name].(map[string]any)
	}
	return schema
}

func schemaOf(t *testing.T, crd *unstructured.Unstructured) map[string]any {
	t.Helper()
	versions, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
	if err != nil || len(versions) != 1 {
		t.Fatalf("versions of %s: %v, %v", crd.GetName(), versions, err)
	}
	spec := crd.Object["spec"].(map[string]any)
	version := spec["versions"].([]any)[0].(map[string]any)
	return version["schema"].(map[string]any)["openAPIV3Schema"].(map[string]any)
}
