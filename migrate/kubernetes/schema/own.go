// Package schema compares the schemas that an API server has with those of this build. Under an older one the API
// server leaves fields away when an object is read, and drops them for good when it is written.
package schema

import (
	"fmt"
	"maps"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/packaging/kubernetes/crd"
)

// own are the schemas of this build, by the names of their objects.
func own() (map[string]*apiextensionsv1.JSONSchemaProps, error) {
	files, err := crd.Bases.ReadDir("bases")
	if err != nil {
		return nil, fmt.Errorf("find the schemas of this build: %w", err)
	}
	all := map[string]*apiextensionsv1.JSONSchemaProps{}
	for _, entry := range files {
		file := "bases/" + entry.Name()
		data, err := crd.Bases.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read schema %s of this build: %w", file, err)
		}
		o := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.Unmarshal(data, o); err != nil {
			return nil, fmt.Errorf("read schema %s of this build: %w", file, err)
		}
		all[o.Name] = of(o)
	}
	return all, nil
}

// of is the schema by which objects of this build's version are served; nil: they are not.
func of(o *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.JSONSchemaProps {
	for i := range o.Spec.Versions {
		v := &o.Spec.Versions[i]
		if v.Name == v1alpha1.GroupVersion.Version && v.Served && v.Schema != nil {
			return v.Schema.OpenAPIV3Schema
		}
	}
	return nil
}

// missing are the fields, the values of fields and the defaults that a served schema lacks, by their paths.
func missing(path string, own, served *apiextensionsv1.JSONSchemaProps) (all []string) {
	switch {
	case served == nil:
		return []string{path}
	case served.XPreserveUnknownFields != nil && *served.XPreserveUnknownFields && len(served.Properties) == 0:
		return nil
	case own.Default != nil && served.Default == nil:
		all = append(all, "the default of "+path)
	}
	for _, name := range slices.Sorted(maps.Keys(own.Properties)) {
		mine, its := own.Properties[name], (*apiextensionsv1.JSONSchemaProps)(nil)
		if p, there := served.Properties[name]; there {
			its = &p
		}
		all = append(all, missing(join(path, name), &mine, its)...)
	}
	for _, v := range own.Enum {
		if len(served.Enum) > 0 && !slices.ContainsFunc(served.Enum, func(is apiextensionsv1.JSON) bool {
			return string(is.Raw) == string(v.Raw)
		}) {
			all = append(all, fmt.Sprintf("value %s of %s", v.Raw, path))
		}
	}
	if own.Items != nil && own.Items.Schema != nil {
		var its *apiextensionsv1.JSONSchemaProps
		if served.Items != nil {
			its = served.Items.Schema
		}
		all = append(all, missing(path+"[]", own.Items.Schema, its)...)
	}
	if a := own.AdditionalProperties; a != nil && a.Schema != nil {
		var its *apiextensionsv1.JSONSchemaProps
		if b := served.AdditionalProperties; b != nil {
			if its = b.Schema; its == nil && b.Allows {
				return all
			}
		}
		all = append(all, missing(path+"[*]", a.Schema, its)...)
	}
	return all
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
