package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// Braces that are text of an object stay text, and a mark becomes its value.
func TestExpress(t *testing.T) {
	got := express("a: VALUE-0-\nargs:\n- VALUE-1-\nimage: localhost/godwit/operator:devel\nsays: '{{ $labels.x }}'\n"+
		"at: x.godwit-system.svc\n", map[string]string{"VALUE-0-": "s.a", "VALUE-1-": "s.more"})
	want := "a: {{ toJson .Values.s.a }}\nargs:\n{{- range .Values.s.more }}\n- {{ . | quote }}\n{{- end }}\n" +
		"image: {{ .Values.image.registry }}/operator:{{ .Values.image.tag }}\nsays: '{{`{{`}} $labels.x }}'\n" +
		"at: x.{{ .Release.Namespace }}.svc\n"
	if got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

// A value whose field is gone from the kustomization is an error: the chart would ignore what a person sets.
func TestValueWithoutField(t *testing.T) {
	o := map[string]any{"spec": map[string]any{"list": []any{map[string]any{"x": 1}}}}
	for _, path := range []string{"spec.other.x", "spec.list.1.x", "spec.list.y", "spec.x.-"} {
		if _, err := set(o, strings.Split(path, "."), "m"); err == nil {
			t.Errorf("%s: no error", path)
		}
	}
	if was, err := set(o, []string{"spec", "list", "0", "x"}, "m"); err != nil || was != 1 {
		t.Errorf("%v %v", was, err)
	}
	c := chart{defaults: map[string]any{}}
	if _, err := c.values(); err == nil || !strings.Contains(err.Error(), "operator.replicas") {
		t.Errorf("values of nothing: %v", err)
	}
}

// Where the operator runs can be set: it has the CA, and by default it prefers the control plane.
func TestOperatorPlacement(t *testing.T) {
	dir := t.TempDir() + "/godwit"
	if err := write("../../../packaging/kubernetes", dir, "v1.2.3"); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(dir + "/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var got struct{ Operator map[string]any }
	if err := yaml.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{"affinity": "node-role.kubernetes.io/control-plane",
		"nodeSelector": "kubernetes.io/os"} {
		if text := fmt.Sprint(got.Operator[key]); !strings.Contains(text, want) {
			t.Errorf("operator.%s is %s, want %s in it", key, text, want)
		}
	}
}
