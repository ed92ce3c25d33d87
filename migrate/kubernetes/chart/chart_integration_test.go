//go:build integration

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"godwit.dev/godwit/migrate/kubernetes/apitest"
)

const (
	source = "../../../packaging/kubernetes"
	helm   = "../../../bin/tools/helm"
)

var server *apitest.Server

func TestMain(m *testing.M) { os.Exit(apitest.Main(m, func(s *apitest.Server) { server = s })) }

// run runs helm for the administrator of the server.
func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), helm, args...)
	home := t.TempDir()
	cmd.Env = append(os.Environ(), "KUBECONFIG="+server.Kubeconfig(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home,
		"HELM_DATA_HOME="+home)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("helm %v: %w: %s", args, err, &errs)
	}
	return string(out), nil
}

func must(t *testing.T, args ...string) string {
	t.Helper()
	out, err := run(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// made makes the chart.
func made(t *testing.T) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "godwit")
	if err := write(source, dir, "v1.2.3-4-gabc"); err != nil {
		t.Fatal(err)
	}
	return dir
}

// byName parses what Helm prints.
func byName(t *testing.T, text string) map[string]object {
	t.Helper()
	all := map[string]object{}
	for _, part := range strings.Split(text, "\n---\n") {
		o := object{}
		if err := yaml.Unmarshal([]byte(part), &o); err != nil {
			t.Fatalf("%v: %s", err, part)
		}
		if o.kind() != "" {
			all[o.kind()+" "+o.name()] = o
		}
	}
	return all
}

// With the defaults, the chart has the objects of the kustomization, and no others.
func TestChartIsTheKustomization(t *testing.T) {
	dir := made(t)
	must(t, "lint", "--strict", dir)
	got := byName(t, must(t, "template", "godwit", dir, "--namespace", namespace, "--set",
		"monitoring.enabled=true,agentSandbox.enabled=true"))
	delete(got, "ConfigMap godwit-uninstall") // a hook of Helm
	for _, part := range []string{"default", "monitoring", "agent-sandbox"} {
		want, err := build(filepath.Join(source, part))
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range want {
			name := w.kind() + " " + w.name()
			o := got[name]
			delete(got, name)
			switch w.kind() {
			case "Namespace":
				continue
			case "CustomResourceDefinition":
				annotations := o["metadata"].(map[string]any)["annotations"].(map[string]any)
				if annotations["helm.sh/resource-policy"] != "keep" {
					t.Errorf("%s goes with the chart", name)
				}
				delete(annotations, "helm.sh/resource-policy")
			}
			if !reflect.DeepEqual(o, w) {
				t.Errorf("%s is\n%v\nwant\n%v", name, o, w)
			}
		}
	}
	for name := range got {
		t.Errorf("%s is not in the kustomization", name)
	}
	out := must(t, "template", "godwit", dir, "--namespace", "other", "--set", "monitoring.enabled=true")
	if strings.Contains(out, namespace) {
		t.Errorf("in another namespace something is of %s", namespace)
	}
	if n := strings.Count(out, "--namespace=other"); n != 3 {
		t.Errorf("%d programs are told their namespace, want operator, setup and agent", n)
	}
}

// A chart is installed in any namespace, with a person's values. An upgrade leaves what the operator wrote. While there
// is a record of a VM it is not removed, and nothing of it; after that, the kinds stay.
func TestChartLives(t *testing.T) {
	const own = "vms"
	if _, err := server.Kubectl(t.Context(), "", "delete", "-k", source+"/crd"); err != nil { // Helm makes its own
		t.Fatal(err)
	}
	if _, err := server.Kubectl(t.Context(), "", "delete", "-k", source+"/rbac"); err != nil {
		t.Fatal(err)
	}
	dir := made(t)
	install := []string{"upgrade", "--install", "godwit", dir, "--namespace", own, "--create-namespace", "--set-string",
		"settings.operator=[registry]\nrepository = \"r\"", "--set", "operator.extraArgs={--on-stop=false}",
		"--set", "image.registry=registry.example/godwit,image.tag=v9"}
	must(t, install...)
	deployment := get(t, "get", "deployment", "-n", own, "godwit-operator", "-o",
		"jsonpath={.spec.replicas} {.spec.template.spec.containers[0].image} {.spec.template.spec.containers[0].args}")
	if !strings.HasPrefix(deployment, "2 registry.example/godwit/operator:v9 ") ||
		!strings.Contains(deployment, `"--namespace=`+own+`"`) || !strings.HasSuffix(deployment, `"--on-stop=false"]`) {
		t.Errorf("the Deployment is %s", deployment)
	}
	got := get(t, "get", "configmap", "-n", own, "godwit-settings", "-o", `jsonpath={.data.operator\.toml}`)
	if !strings.Contains(got, `repository = "r"`) {
		t.Errorf("the settings are %q", got)
	}
	get(t, "patch", "secret", "-n", own, "godwit-webhook", "-p", `{"stringData": {"tls.crt": "x"}}`)
	must(t, append(install, "--set", "operator.replicas=3")...)
	if got := get(t, "get", "deployment,secret", "-n", own, "-o",
		`jsonpath={.items[*].spec.replicas} {.items[*].data.tls\.crt}`); got != "3 eA==" {
		t.Errorf("after an upgrade: %s", got)
	}
	get(t, "create", "-f", "testdata/record.yaml")
	const kinds = "deployment,daemonset,clusterrole,validatingadmissionpolicy"
	before := get(t, "get", kinds, "-A", "-o", "name")
	// Helm's watch of the hook misses its end now and then, and goes on until the time is over.
	uninstall := []string{"uninstall", "godwit", "--namespace", own, "--timeout", "20s"}
	apitest.Eventually(t, "the policy is in force", func() (bool, error) {
		_, err := run(t, uninstall...)
		if err == nil {
			return false, fmt.Errorf("it was removed")
		}
		return strings.Contains(err.Error(), "VM default.web"), err
	})
	if after := get(t, "get", kinds, "-A", "-o", "name"); after != before {
		t.Errorf("a refused removal has left\n%s\nof\n%s", after, before)
	}
	get(t, "delete", "vmrecord", "-A", "--all")
	apitest.Eventually(t, "it is removed", func() (bool, error) {
		_, err := run(t, uninstall...)
		return err == nil, err
	})
	if left := get(t, "get", "deployment,daemonset,validatingadmissionpolicy", "-A", "-o", "name"); left != "" {
		t.Errorf("left: %s", left)
	}
	get(t, "get", "virtualmachines", "-A")
}

func get(t *testing.T, args ...string) string {
	t.Helper()
	out, err := server.Kubectl(t.Context(), "", args...)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out)
}
