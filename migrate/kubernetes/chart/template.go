package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"
)

const (
	namespace = "godwit-system"    // of the kustomization
	images    = "localhost/godwit" // and where its images are
	tag       = "devel"
)

// object of Kubernetes.
type object map[string]any

func (o object) kind() string { text, _ := o["kind"].(string); return text }

func (o object) name() string {
	meta, _ := o["metadata"].(map[string]any)
	text, _ := meta["name"].(string)
	return text
}

// chart is one that is made.
type chart struct {
	defaults map[string]any // of values, by their keys
}

// template answers the file of an object; no text: the chart does not have it.
func (c *chart) template(o object) (name, text string, err error) {
	name = strings.ToLower(o.kind()) + "-" + strings.ReplaceAll(o.name(), ".", "-") + ".yaml"
	if o.kind() == "Namespace" {
		return name, "", nil // Helm has made it
	}
	marks := map[string]string{}
	for _, v := range values {
		if v.kind != o.kind() || v.name != o.name() {
			continue
		}
		mark := fmt.Sprintf("VALUE-%d-", len(marks))
		marks[mark] = v.key
		if c.defaults[v.key], err = set(map[string]any(o), strings.Split(v.path, "."), mark); err != nil {
			return "", "", fmt.Errorf("value %s: %s %s: %w", v.key, v.kind, v.name, err)
		}
	}
	if o.kind() == "CustomResourceDefinition" { // with it, all VMs would go
		policy := []string{"metadata", "annotations", "helm.sh/resource-policy"}
		if _, err := set(map[string]any(o), policy, "keep"); err != nil {
			return "", "", fmt.Errorf("%s %s: %w", o.kind(), o.name(), err)
		}
	}
	raw, err := yaml.Marshal(o)
	if err != nil {
		return "", "", fmt.Errorf("%s %s: %w", o.kind(), o.name(), err)
	}
	return name, express(string(raw), marks), nil
}

// set puts a mark where a path leads, and answers what was there.
func set(at any, path []string, mark string) (was any, err error) {
	last := len(path) == 1
	switch at := at.(type) {
	case map[string]any:
		next, there := at[path[0]]
		if last {
			at[path[0]] = mark
			return next, nil
		}
		if path[1] == "-" {
			list, ok := next.([]any)
			if !ok {
				return nil, fmt.Errorf("%s is no list", path[0])
			}
			at[path[0]] = append(list, mark)
			return []any{}, nil
		}
		if !there {
			return nil, fmt.Errorf("no field %s", path[0])
		}
		return set(next, path[1:], mark)
	case []any:
		if n, err := strconv.Atoi(path[0]); err == nil && n < len(at) {
			return set(at[n], path[1:], mark)
		}
	}
	return nil, fmt.Errorf("no field %s", path[0])
}

// express makes a template of what has marks: braces that are text stay text, and each mark becomes its value.
func express(text string, marks map[string]string) string {
	text = strings.ReplaceAll(text, "{{", "{{`{{`}}")
	for mark, key := range marks {
		added := regexp.MustCompile(`(?m)^( *)- ` + mark + `$`)
		text = added.ReplaceAllString(text, "{{- range .Values."+key+" }}\n$1- {{ . | quote }}\n{{- end }}")
		text = strings.ReplaceAll(text, " "+mark+"\n", " {{ toJson .Values."+key+" }}\n")
	}
	text = regexp.MustCompile(images+`/(\w+):`+tag).ReplaceAllString(text,
		`{{ .Values.image.registry }}/$1:{{ .Values.image.tag }}`)
	text = strings.ReplaceAll(text, "imagePullPolicy: IfNotPresent", "imagePullPolicy: {{ .Values.image.pullPolicy }}")
	return strings.ReplaceAll(text, namespace, "{{ .Release.Namespace }}")
}

// header is Chart.yaml.
func header(version string) string {
	app := version
	if version = strings.TrimPrefix(version, "v"); !regexp.MustCompile(`^\d+\.\d+\.\d+`).MatchString(version) {
		version = "0.0.0-" + version
	}
	return fmt.Sprintf(`apiVersion: v2
name: godwit
description: VMs in pods, that sleep in a registry, wake on any node, and move while they run
type: application
version: %s
appVersion: %q
kubeVersion: ">= 1.35.0-0"
`, version, app)
}
