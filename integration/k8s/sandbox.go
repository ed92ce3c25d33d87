package k8s

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"godwit.dev/godwit/integration/harness"
)

const sandboxController = "agent-sandbox-controller"

// InstallSandboxes installs agent-sandbox as its pinned module has it, and what godwit has for it. Its controller runs
// on the wire, with the rights of its account.
func (c *Cluster) InstallSandboxes(ctx context.Context) error {
	program := filepath.Join(filepath.Dir(c.programs), "agentsandbox", sandboxController)
	if _, err := os.Stat(program); err != nil {
		return fmt.Errorf("find agent-sandbox (make bin/tools/.agentsandbox): %w", err)
	}
	root, err := harness.Root()
	if err != nil {
		return err
	}
	find := exec.CommandContext(ctx, "go", "mod", "download", "-json", "sigs.k8s.io/agent-sandbox")
	find.Dir = filepath.Join(root, "tools", "agentsandbox")
	out, err := find.Output()
	if err != nil {
		return fmt.Errorf("find the module of agent-sandbox: %w", err)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(out, &module); err != nil {
		return fmt.Errorf("find the module of agent-sandbox: %w", err)
	}
	const account, namespace = sandboxController, "agent-sandbox-system"
	for _, args := range [][]string{
		{"apply", "--server-side", "-f", filepath.Join(module.Dir, "k8s", "crds")},
		{"apply", "-f", filepath.Join(module.Dir, "k8s", "rbac.generated.yaml")},
		{"apply", "-f", filepath.Join(module.Dir, "k8s", "extensions-rbac.generated.yaml")},
		{"create", "namespace", namespace},
		{"create", "serviceaccount", "--namespace", namespace, account},
		{"create", "clusterrolebinding", account, "--clusterrole=" + account,
			"--serviceaccount=" + namespace + ":" + account},
		{"create", "clusterrolebinding", account + "-extensions", "--clusterrole=" + account + "-extensions",
			"--serviceaccount=" + namespace + ":" + account},
		{"wait", "--for=condition=Established", "--timeout=60s", "crd/sandboxes.agents.x-k8s.io"},
		{"apply", "-k", filepath.Join(root, "packaging", "kubernetes", "agent-sandbox")},
	} {
		if _, err := c.Kubectl(ctx, args...); err != nil {
			return err
		}
	}
	token, err := c.Kubectl(ctx, "create", "token", "--namespace", namespace, "--duration", "24h", account)
	if err != nil {
		return err
	}
	if err := c.server.WriteConfig(account, strings.TrimSpace(token)); err != nil {
		return err
	}
	_, err = c.wire.Daemon(ctx, account, started, program, "--kubeconfig="+c.config(account), "--leader-elect=false",
		"--extensions", "--enable-webhook=false", "--manage-webhook-certs=false", "--metrics-bind-address=0",
		"--health-probe-bind-address=127.0.0.1:18081")
	return err
}
