package k8s

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"godwit.dev/godwit/integration/harness"
)

const (
	// system is the namespace of godwit's own objects.
	system = "godwit-system"
	// operatorSettings and nodeSettings are what an administrator says to the operator and to the nodes.
	operatorSettings = "[registry]\nrepository = %q\nplain_http = true\n"
	nodeSettings     = "ram_size = \"4GiB\"\n[vmm]\nkind = %q\n[log]\nlevel = \"debug\"\n" + operatorSettings
	// operatorName has the addresses of all operators, in the DNS of a cluster.
	operatorName = "godwit-operator.godwit-system.svc"
)

// importInstall puts the images of godwit itself on each node. They are built from this checkout, once for
// the same programs.
func (c *Cluster) importInstall(ctx context.Context) error {
	root, err := harness.Root()
	if err != nil {
		return err
	}
	file := filepath.Join(root, "out", "k8s-images.tar")
	build := exec.CommandContext(ctx, filepath.Join(root, "tools", "k8s-images.sh"), file)
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the images of godwit (make build guest first): %w: %s", err, out)
	}
	// There is no DNS: the name of the operators is in each node's hosts.
	var names strings.Builder
	for _, n := range c.Nodes() {
		fmt.Fprintf(&names, "%s %s\n", n.Address, operatorName)
	}
	for _, n := range c.Nodes() {
		if err := n.Hosts(names.String()); err != nil {
			return err
		}
		if _, err := n.RunCtr(ctx, "--namespace", "k8s.io", "images", "import", "--local", file); err != nil {
			return fmt.Errorf("import the images of godwit on node %s: %w", n.Name, err)
		}
	}
	return nil
}

// installGodwit does what docs/how-to/kubernetes.md says.
func (c *Cluster) installGodwit(ctx context.Context) error {
	root, err := harness.Root()
	if err != nil {
		return err
	}
	overlay, err := c.overlay(root)
	if err != nil {
		return err
	}
	settings := []string{"create", "configmap", "--namespace", system, "godwit-settings"}
	for name, text := range map[string]string{"operator.toml": fmt.Sprintf(operatorSettings, harness.Repository),
		"node.toml": fmt.Sprintf(nodeSettings, harness.VMM(), harness.Repository)} {
		if err := os.WriteFile(c.path(name), []byte(text), 0o600); err != nil {
			return err
		}
		settings = append(settings, "--from-file="+c.path(name))
	}
	for _, args := range [][]string{
		{"create", "namespace", system},
		settings,
		{"apply", "-k", overlay},
		{"wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"},
		{"rollout", "status", "--namespace", system, "--timeout=" + readyTime.String(), "deployment/godwit-operator"},
		{"rollout", "status", "--namespace", system, "--timeout=" + readyTime.String(), "daemonset/godwit-node"},
	} {
		if _, err := c.Kubectl(ctx, args...); err != nil {
			return fmt.Errorf("install godwit: %w: %s", err, c.state(context.WithoutCancel(ctx)))
		}
	}
	return nil
}

// overlay is the installation with the flags of this cluster, as the documentation has it.
func (c *Cluster) overlay(root string) (string, error) {
	dir := c.path("install")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	packaging, err := filepath.Rel(dir, filepath.Join(root, "packaging", "kubernetes", "default"))
	if err != nil {
		return "", err
	}
	return dir, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), fmt.Appendf(nil, kustomization, packaging,
		"--address-annotation="+addressAnnotation), 0o600)
}

const kustomization = `resources: [%s]
patches:
- target: {kind: Deployment, name: godwit-operator}
  patch: |
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: %q}
`

// state is what Kubernetes says of godwit's own pods, for a failure.
func (c *Cluster) state(ctx context.Context) string {
	var all strings.Builder
	for _, args := range [][]string{{"get", "pods", "-o", "wide"}, {"describe", "pods"},
		{"logs", "-l", "app.kubernetes.io/name in (godwit-operator, godwit-node)", "--all-containers", "--prefix",
			"--ignore-errors", "--tail=60"}} {
		out, err := c.Kubectl(ctx, append(args, "--namespace", system)...)
		fmt.Fprintf(&all, "\nkubectl %v: %v\n%s", args, err, out)
	}
	return all.String()
}
