//go:build integration

package v1alpha1_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
)

// field is where values of a type are written.
type field struct {
	kind kind
	path string
}

// fields are those of each type that has a fixed set of values.
var fields = map[string][]field{
	"VMPhase":        {{vms, "status.phase"}, {sets, "status.phase"}, {sets, "status.members.0.phase"}},
	"MigrationPhase": {{operations, "status.phase"}},
	"RecordPhase":    {{operations, "status.step"}, {records, "summary.phase"}},
	"OperationKind": {{operations, "spec.kind"}, {vms, "status.operation.kind"},
		{records, "summary.kind"}},
	"Priority":         {{operations, "spec.priority"}},
	"Lane":             {{operations, "spec.lane"}, {vms, "spec.migration.lane"}},
	"AbortReason":      {{operations, "spec.abortOn.0"}},
	"OperatingMode":    {{vms, "spec.operatingMode"}},
	"EvictionStrategy": {{vms, "spec.eviction.strategy"}},
	"NetworkMode":      {{vms, "spec.network"}},
	"NodeLossPolicy":   {{vms, "spec.onNodeLoss"}},
	"MemberRole":       {{sets, "spec.members.1.role"}},
	"MoveScope":        {{sets, "spec.moveScope"}},
	"FailurePolicy":    {{sets, "spec.onFailure"}},
	"DeletionPolicy":   {{snapshots, "spec.deletionPolicy"}},
}

// alone is the value that only one member of a set may have.
const alone = string(v1alpha1.RoleMain)

// Each value that the code has a constant for is admitted by the API server where it is written, and no other one is.
func TestEachPhaseIsAdmitted(t *testing.T) {
	client, err := dynamic.NewForConfig(server.REST())
	if err != nil {
		t.Fatal(err)
	}
	values := constants(t)
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if len(fields[name]) == 0 {
			t.Errorf("%s has values, and this test does not know where they are written", name)
		}
		for _, f := range fields[name] {
			for _, value := range append(values[name], "Nonsense") {
				if value == alone {
					continue // a member has it already
				}
				err := write(t, client, f, value)
				if wrong := value == "Nonsense"; wrong != apierrors.IsInvalid(err) || !wrong && err != nil {
					t.Errorf("%s %s = %s: %v", f.kind.resource, f.path, value, err)
				}
			}
		}
	}
}

// constants answers the values of each type that this package declares some for.
func constants(t *testing.T) map[string][]string {
	t.Helper()
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]string{}
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), ".go") || strings.HasSuffix(entry.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), entry.Name(), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || len(spec.Values) != 1 {
				return true
			}
			name, typed := spec.Type.(*ast.Ident)
			text, literal := spec.Values[0].(*ast.BasicLit)
			if typed && literal {
				value, err := strconv.Unquote(text.Value)
				if err != nil {
					t.Fatal(err)
				}
				all[name.Name] = append(all[name.Name], value)
			}
			return true
		})
	}
	if len(all) < len(fields) {
		t.Fatalf("found values of %d types, and the table has %d", len(all), len(fields))
	}
	return all
}

// write makes an object and writes the value as a controller does: a status by the status subresource.
func write(t *testing.T, client dynamic.Interface, f field, value string) error {
	t.Helper()
	objects := f.kind.of(client)
	object := &unstructured.Unstructured{Object: f.kind.object()}
	object.SetGenerateName("phase-")
	parts := strings.Split(f.path, ".")
	if parts[0] != "status" {
		set(object.Object, parts, value)
		_, err := objects.Create(t.Context(), object, metav1.CreateOptions{})
		return err
	}
	made, err := objects.Create(t.Context(), object, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("make %s: %v", f.kind.resource, err)
	}
	made.Object["status"] = f.kind.object()["status"] // dropped when an object is made
	set(made.Object, parts, value)
	now, err := objects.UpdateStatus(t.Context(), made, metav1.UpdateOptions{})
	if err == nil && get(now.Object, parts) != value {
		t.Errorf("%s %s: %v was stored for %s", f.kind.resource, f.path, get(now.Object, parts), value)
	}
	return err
}
