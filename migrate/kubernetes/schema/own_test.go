package schema

import (
	"slices"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// at is a part of a schema, by the names of its fields.
func at(t *testing.T, s *apiextensionsv1.JSONSchemaProps, path ...string) *apiextensionsv1.JSONSchemaProps {
	t.Helper()
	for _, name := range path {
		p, there := s.Properties[name]
		if !there {
			t.Fatalf("there is no %s", name)
		}
		s = &p
	}
	return s
}

// What an older schema lacks is named by its path: a field, a value, a default. One that has more lacks nothing.
func TestMissing(t *testing.T) {
	all, err := own()
	if err != nil || len(all) != 8 {
		t.Fatalf("%d schemas: %v", len(all), err)
	}
	for name, s := range all {
		newer := s.DeepCopy()
		newer.Properties["more"] = apiextensionsv1.JSONSchemaProps{Type: "string"}
		if got := missing("", s, newer); len(got) > 0 {
			t.Errorf("%s lacks %v of itself", name, got)
		}
		if got := missing("", newer, s); !slices.Equal(got, []string{"more"}) {
			t.Errorf("%s: %v, want the field", name, got)
		}
	}
	vms, records := all["virtualmachines.godwit.dev"], all["vmrecords.godwit.dev"]
	for want, change := range map[string]func(vm, rec *apiextensionsv1.JSONSchemaProps){
		"spec.operatingMode": func(vm, _ *apiextensionsv1.JSONSchemaProps) {
			delete(at(t, vm, "spec").Properties, "operatingMode")
		},
		"the default of spec.operatingMode": func(vm, _ *apiextensionsv1.JSONSchemaProps) {
			p := *at(t, vm, "spec", "operatingMode")
			p.Default = nil
			at(t, vm, "spec").Properties["operatingMode"] = p
		},
		"spec.template.spec.containers[].image": func(vm, _ *apiextensionsv1.JSONSchemaProps) {
			delete(at(t, vm, "spec", "template", "spec", "containers").Items.Schema.Properties, "image")
		},
		`value "Switching" of summary.phase`: func(_, rec *apiextensionsv1.JSONSchemaProps) {
			p := *at(t, rec, "summary", "phase")
			p.Enum = slices.DeleteFunc(slices.Clone(p.Enum), func(v apiextensionsv1.JSON) bool {
				return string(v.Raw) == `"Switching"`
			})
			at(t, rec, "summary").Properties["phase"] = p
		},
		"spec": func(vm, _ *apiextensionsv1.JSONSchemaProps) { delete(vm.Properties, "spec") },
	} {
		vm, rec := vms.DeepCopy(), records.DeepCopy()
		change(vm, rec)
		if got := append(missing("", vms, vm), missing("", records, rec)...); !slices.Equal(got, []string{want}) {
			t.Errorf("%v, want %s", got, want)
		}
	}
}
