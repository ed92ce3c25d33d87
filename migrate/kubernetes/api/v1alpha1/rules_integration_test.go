//go:build integration

package v1alpha1_test

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
)

// refusal is a change that the API server refuses, and what it says. With an empty text it takes the change.
type refusal struct {
	name   string
	kind   kind
	path   string
	before any // where the object has another value than the smallest one
	after  any // nil: the object is made with before
	says   string
}

var refusals = []refusal{
	{"class of a VM", vms, "spec.snapshotClassName", "a", "b", "make another VirtualMachine"},
	{"class of a VM that had none", vms, "spec.snapshotClassName", nil, "b", "make another VirtualMachine"},
	{"origin of a VM", vms, "spec.restoreFrom", fieldsOf{"name": "a"}, fieldsOf{"name": "b"},
		"make another VirtualMachine"},
	{"template of a VM", vms, "spec.template.spec.containers.0.image", "a", "b", ""},
	{"mode of a VM", vms, "spec.operatingMode", "Running", "Hibernated", ""},
	{"too long a pause", vms, "spec.migration.maxDowntimeMs", int64(60001), nil, "60000"},
	{"no main", sets, "spec.members.0.role", "Helper", nil, "role Main"},
	{"two mains", sets, "spec.members.1.role", "Main", nil, "role Main"},
	{"an order without one member", sets, "spec.order", []any{"a"}, nil, "each member once"},
	{"an order with a stranger", sets, "spec.order", []any{"a", "c"}, nil, "each member once"},
	{"an order that names one twice", sets, "spec.order", []any{"a", "a"}, nil, "Duplicate"},
	{"an order", sets, "spec.order", []any{"b", "a"}, nil, ""},
	{"two members of one name", sets, "spec.members.1.name", "a", nil, "Duplicate"},
	{"kind of an operation", operations, "spec.kind", "Hibernate", "Checkpoint", "make another VMOperation"},
	{"VM of an operation", operations, "spec.vmRef.name", "a", "b", "make another VMOperation"},
	{"knob of an operation", operations, "spec.timeoutSeconds", nil, int64(5), "make another VMOperation"},
	{"limits of an operation", operations, "spec.abortOn", []any{"Stall"}, []any{"Downtime"},
		"make another VMOperation"},
	{"abort", operations, "spec.abort", nil, true, ""},
	{"abort taken back", operations, "spec.abort", true, false, "abort cannot be taken back"},
	{"destination of a hibernate", operations, "spec.nodeName", "n", nil, "nodeName is for Migrate and Wake"},
	{"two sources", snapshots, "spec.source.podRef", fieldsOf{"name": "p", "uid": "1"}, nil, "not both"},
	{"no source", snapshots, "spec.source", fieldsOf{}, nil, "not both"},
	{"source of a snapshot", snapshots, "spec.source.vmRef.name", "a", "b", "make another VMSnapshot"},
	{"node of a work order", contents, "spec.source.nodeName", "a", "b", "a work order cannot be changed"},
	{"repository without a path", classes, "spec.repository", "registry.example", nil, "spec.repository"},
	{"repository", classes, "spec.repository", "registry.example/a", "registry.example/b", "make another VMSnapshotClass"},
	{"a directory as repository", classes, "spec.repository", "oci-layout:1/x", nil, "no directory"},
	{"a path as repository", classes, "spec.repository", "oci-layout:x/y", nil, "spec.repository"},
	{"retention of a class", classes, "spec.retention", fieldsOf{"keep": int64(1)}, fieldsOf{"keep": int64(2)},
		"make another VMSnapshotClass"},
	{"retention of a class that had none", classes, "spec.retention", nil, fieldsOf{"keep": int64(2)},
		"make another VMSnapshotClass"},
	{"keys of a class that had none", classes, "spec.sealSecretRef", nil, secret("a"), "make another VMSnapshotClass"},
	{"no keys of a class that had some", classes, "spec",
		fieldsOf{"repository": "r.example/a", "sealSecretRef": secret("a")},
		fieldsOf{"repository": "r.example/a"}, "make another VMSnapshotClass"},
	{"other keys of a class", classes, "spec.sealSecretRef", secret("a"), secret("b"), ""},
	{"a signature of a class that had none", classes, "spec.signSecretRef", nil, secret("a"),
		"make another VMSnapshotClass"},
	{"another signature of a class", classes, "spec.signSecretRef", secret("a"), secret("b"), ""},
	{"a short grace of a class", classes, "spec.minGraceSeconds", int64(29), nil, "30"},
	{"a long grace of a class", classes, "spec.minGraceSeconds", int64(86401), nil, "86400"},
	{"grace of a class", classes, "spec.minGraceSeconds", int64(30), int64(86400), ""},
	{"namespaces of a class", classes, "spec.allowedNamespaces", nil, fieldsOf{}, ""},
	{"place of a work order", contents, "spec.repository", "r/a", "r/b", "a work order cannot be changed"},
	{"VM of a record", records, "spec.vm.id", "a.b", "a.c", "a record is that of one VM"},
}

func secret(name string) fieldsOf { return fieldsOf{"namespace": "godwit-system", "name": name} }

// What must not change does not, what must agree agrees, and the refusal says what to do.
func TestRulesOfTheSchema(t *testing.T) {
	client, err := dynamic.NewForConfig(server.REST())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range refusals {
		t.Run(r.name, func(t *testing.T) {
			objects := r.kind.of(client)
			object := &unstructured.Unstructured{Object: r.kind.object()}
			object.SetGenerateName("rule-")
			path := strings.Split(r.path, ".")
			if r.before != nil {
				set(object.Object, path, clone(r.before))
			}
			made, err := objects.Create(t.Context(), object, metav1.CreateOptions{})
			if r.after != nil {
				if err != nil {
					t.Fatal(err)
				}
				set(made.Object, path, clone(r.after))
				_, err = objects.Update(t.Context(), made, metav1.UpdateOptions{})
			}
			if r.says == "" && err != nil {
				t.Errorf("%v", err)
			}
			if r.says != "" && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), r.says)) {
				t.Errorf("%v, want a refusal that says %q", err, r.says)
			}
		})
	}
}

// Labels of a template are kept: without a schema for them the API server would drop them.
func TestLabelsOfTemplatesStay(t *testing.T) {
	client, err := dynamic.NewForConfig(server.REST())
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range []kind{vms, sets} {
		object := &unstructured.Unstructured{Object: k.object()}
		object.SetGenerateName("labels-")
		path := strings.Split("spec.template.metadata", ".")
		if k.resource == sets.resource {
			path = strings.Split("spec.members.0.spec.template.metadata", ".")
		}
		set(object.Object, path, fieldsOf{"labels": fieldsOf{"app": "redis"}})
		made, err := k.of(client).Create(t.Context(), object, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got := get(made.Object, append(path, "labels", "app")); got != "redis" {
			t.Errorf("%s keeps label %v", k.resource, got)
		}
	}
}

// Each kind is made as its smallest object, and a status has each condition once.
func TestKinds(t *testing.T) {
	client, err := dynamic.NewForConfig(server.REST())
	if err != nil {
		t.Fatal(err)
	}
	condition := fieldsOf{"type": "Ready", "status": "True", "reason": "Running", "message": "",
		"lastTransitionTime": "2026-11-28T00:00:00Z"}
	for _, k := range kinds {
		object := &unstructured.Unstructured{Object: k.object()}
		object.SetGenerateName("kind-")
		made, err := k.of(client).Create(t.Context(), object, metav1.CreateOptions{})
		if err != nil {
			t.Errorf("%s: %v", k.name, err)
			continue
		}
		if k.resource == records.resource || k.resource == classes.resource {
			continue // they have no status
		}
		made.Object["status"] = fieldsOf{"conditions": []any{condition, condition}}
		if _, err := k.of(client).UpdateStatus(t.Context(), made, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) ||
			!strings.Contains(err.Error(), "Duplicate") {
			t.Errorf("%s with a condition twice: %v", k.name, err)
		}
	}
}
