package v1alpha1_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/util/yaml"
)

const (
	schemas = "../../../../packaging/kubernetes/crd/bases"
	// most bytes of a schema. kubectl apply keeps its JSON in an annotation, and an object has 256 KiB of those.
	most = 100 << 10
)

// Each schema fits into what kubectl apply keeps of it, has no descriptions, and keeps the labels of templates.
func TestSchemasAreSmall(t *testing.T) {
	files, err := os.ReadDir(schemas)
	if err != nil || len(files) != 8 {
		t.Fatalf("%d schemas, want one for each kind: %v", len(files), err)
	}
	var templates []string
	for _, file := range files {
		data, err := os.ReadFile(filepath.Join(schemas, file.Name()))
		if err != nil {
			t.Fatal(err)
		}
		schema, err := yaml.ToJSON(data)
		if err != nil {
			t.Fatal(err)
		}
		if len(schema) > most {
			t.Errorf("%s has %d bytes as JSON, %d are the most", file.Name(), len(schema), most)
		}
		if bytes.Contains(schema, []byte(`"description":"`)) {
			t.Errorf("%s has descriptions", file.Name())
		}
		if embedsLabels(t, schema) {
			templates = append(templates, file.Name())
		}
	}
	want := []string{"godwit.dev_virtualmachines.yaml", "godwit.dev_virtualmachinesets.yaml"}
	if !slices.Equal(templates, want) {
		t.Errorf("the API server keeps labels of templates in %v, want %v", templates, want)
	}
}

// embedsLabels reports whether the schema has a template with fields for metadata: what no field is for is pruned.
func embedsLabels(t *testing.T, schema []byte) bool {
	t.Helper()
	var tree any
	if err := json.Unmarshal(schema, &tree); err != nil {
		t.Fatal(err)
	}
	return find(tree, func(m map[string]any) bool {
		template, _ := m["template"].(map[string]any)
		fields, _ := template["properties"].(map[string]any)
		meta, _ := fields["metadata"].(map[string]any)
		embedded, _ := meta["properties"].(map[string]any)
		return embedded["labels"] != nil && embedded["annotations"] != nil
	})
}

func find(in any, is func(map[string]any) bool) bool {
	switch in := in.(type) {
	case map[string]any:
		if is(in) {
			return true
		}
		for _, v := range in {
			if find(v, is) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(in, func(v any) bool { return find(v, is) })
	}
	return false
}
