package main

import (
	"encoding/json"
	"fmt"
	"strings"
)

// value is one that a person may set. Its default is what the kustomization has there.
type value struct {
	key  string // SECTION.NAME
	kind string // of the object, and its name
	name string
	path string // of the field: names, and indexes of lists. A last "-" adds to a list, and is empty by default
	says string
}

const (
	inOperator = "spec.template.spec.containers.0."
	inNode     = "spec.template.spec."
)

var values = []value{
	{"operator.replicas", "Deployment", "godwit-operator", "spec.replicas", "One leads, and all answer the webhook."},
	{"operator.resources", "Deployment", "godwit-operator", inOperator + "resources", ""},
	{"operator.extraArgs", "Deployment", "godwit-operator", inOperator + "args.-", "More flags: godwit-operator -help."},
	{"operator.nodeSelector", "Deployment", "godwit-operator", inNode + "nodeSelector", ""},
	{"operator.affinity", "Deployment", "godwit-operator", inNode + "affinity",
		"Root of its nodes may read the CA. Require nodes that run no VMs, if you have some."},
	{"operator.tolerations", "Deployment", "godwit-operator", inNode + "tolerations", ""},
	{"node.nodeSelector", "DaemonSet", "godwit-node", inNode + "nodeSelector", "The nodes that run VMs."},
	{"node.tolerations", "DaemonSet", "godwit-node", inNode + "tolerations", ""},
	{"node.resources", "DaemonSet", "godwit-node", inNode + "containers.0.resources", "Of godwitd. VMs are not in it."},
	{"runtimeClass.overhead", "RuntimeClass", "godwit", "overhead", "What a VM costs its host beside its containers."},
}

// more are values that are no field of one object.
var more = []struct{ key, fallback, says string }{
	{"image.registry", `"` + images + `"`, "Where the images operator and node are."},
	{"image.tag", `"` + tag + `"`, ""},
	{"image.pullPolicy", `"IfNotPresent"`, ""},
	{"settings.operator", `""`, "Settings of operators, config.toml: the repository of snapshots. Empty: the ConfigMap " +
		"godwit-settings is yours."},
	{"settings.node", `""`, "Settings of nodes."},
	{"monitoring.enabled", "false", "Objects for the Prometheus Operator: PodMonitor, PrometheusRule, the dashboard."},
	{"agentSandbox.enabled", "false", "Policies by which the pods of Sandboxes are VMs: Kubernetes 1.36 or newer."},
}

// sections are the order of the sections, with what stands above each.
var sections = []string{"image", "settings", "operator", "node", "runtimeClass", "monitoring", "agentSandbox"}

// values writes values.yaml.
func (c *chart) values() (string, error) {
	var all strings.Builder
	all.WriteString("# Defaults are those of the kustomization packaging/kubernetes/default.\n")
	say := func(key, text, says string) {
		if says != "" {
			fmt.Fprintf(&all, "  # %s\n", says)
		}
		_, name, _ := strings.Cut(key, ".")
		fmt.Fprintf(&all, "  %s: %s\n", name, text)
	}
	for _, section := range sections {
		fmt.Fprintf(&all, "%s:\n", section)
		for _, m := range more {
			if strings.HasPrefix(m.key, section+".") {
				say(m.key, m.fallback, m.says)
			}
		}
		for _, v := range values {
			if !strings.HasPrefix(v.key, section+".") {
				continue
			}
			was, ok := c.defaults[v.key]
			if !ok {
				return "", fmt.Errorf("value %s: no %s %s was built", v.key, v.kind, v.name)
			}
			text, err := json.Marshal(was)
			if err != nil {
				return "", fmt.Errorf("value %s: %w", v.key, err)
			}
			say(v.key, string(text), v.says)
		}
	}
	return all.String(), nil
}
