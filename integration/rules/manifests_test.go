package rules

import (
	"bytes"
	"errors"
	"io"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const manifests = "packaging/kubernetes/"

// workload is what the rules below look at of a Deployment or DaemonSet.
type workload struct {
	Kind     string
	Metadata struct{ Name string }
	Spec     struct {
		Template struct {
			Spec struct {
				Containers []container
				Affinity   struct {
					NodeAffinity map[string]any `yaml:"nodeAffinity"`
				}
				Volumes []struct {
					Name     string
					HostPath struct{ Path string } `yaml:"hostPath"`
				}
			}
		}
	}
}

type container struct {
	Name         string
	VolumeMounts []struct {
		Name      string
		MountPath string `yaml:"mountPath"`
		ReadOnly  bool   `yaml:"readOnly"`
	} `yaml:"volumeMounts"`
}

// workloads are those of the manifests.
func workloads(t *testing.T) (all []workload) {
	t.Helper()
	for path, text := range tracked(t) {
		if !strings.HasPrefix(path, manifests) || filepath.Ext(path) != ".yaml" || strings.Contains(path, "/chart/") {
			continue
		}
		for d := yaml.NewDecoder(bytes.NewReader(text)); ; {
			var node yaml.Node
			err := d.Decode(&node)
			if errors.Is(err, io.EOF) {
				break
			}
			var w workload
			if err == nil {
				err = node.Decode(&w)
			}
			if w.Kind != "Deployment" && w.Kind != "DaemonSet" {
				continue
			}
			if err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			all = append(all, w)
		}
	}
	if len(all) < 2 {
		t.Fatalf("%d workloads", len(all))
	}
	return all
}

// What runs CNI's programs has their state from the node, and may write it. Else two programs of the node give one
// address twice: host-local writes its leases to /var/lib/cni. Other plugins have theirs below /var/run.
func TestCNIHasTheStateOfTheNode(t *testing.T) {
	seen := 0
	for _, w := range workloads(t) {
		on := map[string]string{}
		for _, v := range w.Spec.Template.Spec.Volumes {
			on[v.Name] = v.HostPath.Path
		}
		for _, c := range w.Spec.Template.Spec.Containers {
			runs, state := false, false
			for _, m := range c.VolumeMounts {
				runs = runs || m.MountPath == "/opt/cni/bin"
				state = state || m.MountPath == "/var/lib/cni" && on[m.Name] == m.MountPath && !m.ReadOnly
			}
			if runs && !state {
				t.Errorf("%s %s: container %s runs CNI without /var/lib/cni of the node", w.Kind, w.Metadata.Name, c.Name)
			}
			if runs {
				seen++
			}
		}
	}
	if seen == 0 {
		t.Error("nothing runs CNI")
	}
	link := regexp.MustCompile(`ln -s \.\./run "\$\w+"/var/run|ln -s \.\./run "\$\w+/var/run"`)
	for _, script := range []string{"tools/k8s-images.sh", "tools/image.sh"} {
		if !link.Match(tracked(t)[script]) {
			t.Errorf("%s: the image has no link from /var/run to /run", script)
		}
	}
	if page := string(tracked(t)["docs/how-to/install.md"]); !strings.Contains(page, "`/var/lib/cni`") {
		t.Error("docs/how-to/install.md: a container of godwitd has no /var/lib/cni of the node")
	}
}

// The operator has the CA by which any node is known. By default it is not where the VMs run, but on the control plane,
// whose root has the CA of the cluster anyway.
func TestOperatorIsOnTheControlPlane(t *testing.T) {
	for _, w := range workloads(t) {
		if w.Metadata.Name != "godwit-operator" {
			continue
		}
		var text bytes.Buffer
		if err := yaml.NewEncoder(&text).Encode(w.Spec.Template.Spec.Affinity.NodeAffinity); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(text.String(), "DuringSchedulingIgnoredDuringExecution") ||
			!strings.Contains(text.String(), "node-role.kubernetes.io/control-plane") {
			t.Errorf("its affinity is %s", &text)
		}
		return
	}
	t.Error("there is no operator")
}
