package store

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// No two VMs have one object, each name is one that Kubernetes takes, and that of a VM of Kubernetes can be read.
func TestObjectNames(t *testing.T) {
	long := strings.Repeat("x", 76)
	seen := map[string]string{}
	for _, vm := range []*nodev1.VM{
		{Namespace: "k8s.io", Id: "ns.vm"}, {Namespace: "k8s.io", Id: "vm"}, {Namespace: "k8s.io", Id: "ns.VM"},
		{Namespace: "k8s.io", Id: "ns_vm"}, {Namespace: "k8s.io.ns", Id: "vm"}, {Namespace: "default", Id: "ns.vm"},
		{Namespace: "a", Id: "b.c"}, {Namespace: "a.b", Id: "c"}, {Namespace: long, Id: long},
	} {
		name, err := objectName(vm)
		if err != nil || len(validation.IsDNS1123Subdomain(name)) > 0 || seen[name] != "" {
			t.Errorf("%v is %q as %q, %v", vm, name, seen[name], err)
		}
		seen[name] = vm.String()
	}
	if name, err := objectName(&nodev1.VM{Namespace: "k8s.io", Id: "ns.vm"}); err != nil || name != "ns.vm" {
		t.Errorf("%q, %v", name, err)
	}
	if name, err := objectName(&nodev1.VM{Namespace: "a", Id: strings.Repeat("x", 200)}); err == nil {
		t.Errorf("a name of 200 is %q", name)
	}
}

// An id of an operation that is no label is found by a hash, and no id takes another one's place.
func TestOperationLabels(t *testing.T) {
	var all []string
	for _, id := range []string{"op", "op-", strings.Repeat("a", 63), strings.Repeat("a", 64), "A.b_c-d"} {
		label := operationLabel(id)
		if len(validation.IsQualifiedName(label)) > 0 || slices.Contains(all, label) {
			t.Errorf("%s has label %s", id, label)
		}
		all = append(all, label)
	}
}
