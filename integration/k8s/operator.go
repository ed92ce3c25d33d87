package k8s

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

// operatorAccount is who the operator is for the API server.
const operatorAccount = "godwit-operator"

// install replaces the first node's godwitd, which has made the certificates, by the operator. Its rights
// on Kubernetes come from packaging/kubernetes.
func (c *Cluster) install(ctx context.Context) error {
	root, err := harness.Root()
	if err != nil {
		return err
	}
	if c.operatorProgram, err = c.buildProgram(ctx, operatorAccount); err != nil {
		return err
	}
	if err := c.Node(0).Godwitd.Stop(); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"apply", "-f", filepath.Join(root, "packaging", "kubernetes", "system", "namespace.yaml")},
		{"apply", "-k", filepath.Join(root, "packaging", "kubernetes", "crd")},
		{"apply", "-k", filepath.Join(root, "packaging", "kubernetes", "rbac")},
		{"wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"},
	} {
		if _, err := c.Kubectl(ctx, args...); err != nil {
			return err
		}
	}
	// It has the rights of its account, and no others.
	token, err := c.Kubectl(ctx, "create", "token", "--namespace", system, "--duration", "24h", operatorAccount)
	if err != nil {
		return err
	}
	if err := c.server.WriteConfig(operatorAccount, strings.TrimSpace(token)); err != nil {
		return err
	}
	if err := c.writeWebhook(ctx, root); err != nil {
		return err
	}
	return c.StartOperator(ctx)
}

// buildProgram builds a program of migrate/kubernetes, once.
func (c *Cluster) buildProgram(ctx context.Context, name string) (string, error) {
	program := filepath.Join(c.Dir, name)
	if _, err := os.Stat(program); err == nil {
		return program, nil
	}
	root, err := harness.Root()
	if err != nil {
		return "", err
	}
	build := exec.CommandContext(ctx, "go", "build", "-o", program, "./cmd/"+name)
	build.Dir = filepath.Join(root, "migrate", "kubernetes")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w: %s", name, err, out)
	}
	return program, nil
}

// StartOperator starts the operator, also again, and waits until it and all other nodes are up.
func (c *Cluster) StartOperator(ctx context.Context) error {
	if len(c.Nodes()) < 2 {
		return errors.New("start the operator: it needs a node of its own, and there is one node alone")
	}
	a, b := c.Node(0), c.Node(1)
	up := func(ctx context.Context) error {
		out, err := b.RunGodwit(ctx, "nodes", "-o", "json")
		if err == nil && strings.Count(out, `"up": true`) < len(c.Nodes()) {
			err = fmt.Errorf("nodes: %s", out)
		}
		return err
	}
	var err error
	c.operator, err = a.Daemon(ctx, "operator", up, c.operatorProgram, "--config", a.Config, "--kubeconfig",
		c.config(operatorAccount), "--webhook", c.webhookAt(), "--webhook-certs", c.path("webhook"),
		"--address-annotation", addressAnnotation)
	if err != nil {
		return fmt.Errorf("start the operator: %w", err)
	}
	return nil
}

// Operator is its process.
func (c *Cluster) Operator() *harness.Process { return c.operator }

// OperatorLog is what it has said, also before it was started again.
func (c *Cluster) OperatorLog() (string, error) {
	log, err := os.ReadFile(filepath.Join(c.Dir, "log", c.Node(0).Name+"-operator.log"))
	return string(log), err
}

// Workers are the nodes of Kubernetes.
func (c *Cluster) Workers() []*harness.Node {
	if c.opts.Operator {
		return c.Nodes()[1:]
	}
	return c.Nodes()
}

// The images of VirtualMachines.
const (
	RedisImage = "localhost/godwit/redis:7"
	ProbeImage = "localhost/godwit/probe:1"
)

// machines are the images that the VMs of the cases and of the demo run.
func (c *Cluster) machines(ctx context.Context) ([]images.Image, error) {
	root, err := harness.Root()
	if err != nil {
		return nil, err
	}
	probe, err := c.Build(ctx, "probe")
	if err != nil {
		return nil, err
	}
	all, err := images.Real(ctx, filepath.Join(root, "bin", "debs"), probe)
	if err != nil {
		return nil, err
	}
	names := map[string]string{images.Redis: RedisImage, images.Scratch: ProbeImage}
	var chosen []images.Image
	for _, i := range all {
		if name := names[i.Name]; name != "" {
			i.Name = name
			chosen = append(chosen, i)
		}
	}
	return chosen, nil
}
