//go:build integration

package v1alpha1_test

import (
	"maps"
	"strconv"

	"k8s.io/client-go/dynamic"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
)

type fieldsOf = map[string]any

// kind is a resource, and the smallest object of it that is valid.
type kind struct {
	resource, name string
	cluster        bool
	fields         *fieldsOf
}

var (
	template = fieldsOf{"spec": fieldsOf{"containers": []any{fieldsOf{"name": "c", "image": "i"}}}}

	vms = kind{resource: "virtualmachines", name: "VirtualMachine", fields: &fieldsOf{
		"spec":   fieldsOf{"template": template, "eviction": fieldsOf{}, "migration": fieldsOf{}},
		"status": fieldsOf{"operation": fieldsOf{"id": "o"}},
	}}
	sets = kind{resource: "virtualmachinesets", name: "VirtualMachineSet", fields: &fieldsOf{
		"spec": fieldsOf{"members": []any{
			fieldsOf{"name": "a", "role": "Main", "spec": fieldsOf{"template": template}},
			fieldsOf{"name": "b", "spec": fieldsOf{"template": template}},
		}},
		"status": fieldsOf{"members": []any{fieldsOf{"name": "a"}}},
	}}
	operations = kind{resource: "vmoperations", name: "VMOperation", fields: &fieldsOf{
		"spec":   fieldsOf{"vmRef": fieldsOf{"name": "vm"}, "kind": "Hibernate", "abortOn": []any{"Stall"}},
		"status": fieldsOf{},
	}}
	snapshots = kind{resource: "vmsnapshots", name: "VMSnapshot", fields: &fieldsOf{
		"spec": fieldsOf{"source": fieldsOf{"vmRef": fieldsOf{"name": "vm"}}},
	}}
	contents = kind{resource: "vmsnapshotcontents", name: "VMSnapshotContent", cluster: true, fields: &fieldsOf{
		"spec": fieldsOf{
			"snapshotRef": fieldsOf{"namespace": "default", "name": "s", "uid": "1"},
			"source": fieldsOf{"podRef": fieldsOf{"namespace": "default", "name": "p", "uid": "2"},
				"nodeName": "n"},
		},
	}}
	classes = kind{resource: "vmsnapshotclasses", name: "VMSnapshotClass", cluster: true, fields: &fieldsOf{
		"spec": fieldsOf{"repository": "registry.example:5000/vms"},
	}}
	nodes   = kind{resource: "godwitnodes", name: "GodwitNode", cluster: true, fields: &fieldsOf{}}
	records = kind{resource: "vmrecords", name: "VMRecord", cluster: true, fields: &fieldsOf{
		"spec": fieldsOf{"vm": fieldsOf{"namespace": "k8s.io", "id": "ns.vm"}}, "summary": fieldsOf{},
	}}
	kinds = []kind{vms, sets, operations, snapshots, contents, classes, nodes, records}
)

// object answers a new one.
func (k kind) object() map[string]any {
	all, _ := clone(*k.fields).(map[string]any)
	maps.Copy(all, map[string]any{"apiVersion": v1alpha1.GroupVersion.String(), "kind": k.name,
		"metadata": map[string]any{}})
	return all
}

func (k kind) of(client dynamic.Interface) dynamic.ResourceInterface {
	all := client.Resource(v1alpha1.GroupVersion.WithResource(k.resource))
	if k.cluster {
		return all
	}
	return all.Namespace("default")
}

func clone(in any) any {
	switch in := in.(type) {
	case map[string]any:
		out := map[string]any{}
		for k, v := range in {
			out[k] = clone(v)
		}
		return out
	case []any:
		out := make([]any, len(in))
		for i, v := range in {
			out[i] = clone(v)
		}
		return out
	}
	return in
}

// set changes a field; a number in its path is a place in a list. What is on the way to it must be there, but for
// status.
func set(in any, path []string, value any) {
	for ; len(path) > 1; path = path[1:] {
		in = step(in, path[0])
	}
	switch in := in.(type) {
	case map[string]any:
		in[path[0]] = value
	case []any:
		i, err := strconv.Atoi(path[0])
		if err != nil {
			panic(err)
		}
		in[i] = value
	}
}

func get(in any, path []string) any {
	for _, name := range path {
		in = step(in, name)
	}
	return in
}

func step(in any, name string) any {
	switch in := in.(type) {
	case map[string]any:
		return in[name]
	case []any:
		i, err := strconv.Atoi(name)
		if err != nil {
			panic(err)
		}
		return in[i]
	}
	return nil
}
