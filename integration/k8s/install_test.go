//go:build integration

package k8s

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"godwit.dev/godwit/integration/harness"
)

// TestInstall: kubectl apply -k installs godwit on a cluster that has nothing but its images. Two operators serve, of
// which one leads. When that one is deleted, the other leads. The API server reaches the webhook by a certificate that
// the operator made. A VirtualMachine runs, also while the pod of its node is replaced. It sleeps and wakes. While it
// runs, godwit cannot be removed.
func TestInstall(t *testing.T) {
	c, err := Open(t.Context(), Options{Nodes: 2, Handler: Godwit, Installed: true, Log: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			c.Keep(t.Name())
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	s := site{Cluster: c, t: t}
	operators := s.kubectl("get", "pods", "-n", system, "-l", "app.kubernetes.io/name=godwit-operator", "-o",
		`jsonpath={range .items[*]}{.spec.nodeName} {.status.conditions[?(@.type=="Ready")].status}{"\n"}{end}`)
	for _, n := range c.Nodes() {
		if !strings.Contains(operators+"\n", n.Name+" True\n") {
			t.Errorf("no operator is ready on node %s: %s", n.Name, operators)
		}
	}
	s.webhookAnswers()
	first := s.leader("")
	begun := time.Now()
	s.kubectl("delete", "pod", "-n", system, first, "--wait=false")
	s.leader(first)
	t.Logf("another operator leads after %.1f s", time.Since(begun).Seconds())
	s.webhookAnswers()
	s.kubectl("rollout", "status", "-n", system, "--timeout="+limit.String(), "deployment/godwit-operator")
	s.apply("shop")
	s.wait("condition=Ready", "virtualmachine/shop")
	s.removalRefused()
	s.nodeReplaced(s.pod("shop-g1-a0").node)
	s.kubectl("patch", "gvm", "shop", "--type=merge", "-p", `{"spec": {"operatingMode": "Hibernated"}}`)
	s.wait("condition=Hibernated", "gvm/shop")
	if out := s.remove("--dry-run=server"); strings.Contains(out, "deleted") ||
		!strings.Contains(out, "VM default.shop sleeps") {
		t.Errorf("while a VM sleeps, kubectl delete says: %s", out)
	}
	s.kubectl("patch", "gvm", "shop", "--type=merge", "-p", `{"spec": {"operatingMode": "Running"}}`)
	s.wait("condition=Ready", "gvm/shop")
	if got, err := s.AskRedis(t.Context(), "shop", "GET", "nonce"); err != nil || got != "kept" {
		t.Errorf("after a sleep redis has %q: %v", got, err)
	}
	s.metricsAreRead()
}

// remove deletes what was installed, and answers what kubectl says.
func (s site) remove(more ...string) string {
	s.t.Helper()
	root, err := harness.Root()
	if err != nil {
		s.t.Fatal(err)
	}
	out, err := s.Kubectl(s.t.Context(), append([]string{"delete", "--wait=false", "-k",
		filepath.Join(root, "packaging", "kubernetes", "system")}, more...)...)
	return fmt.Sprintln(out, err)
}

// removalRefused: nothing of godwit is deleted while a VM runs.
func (s site) removalRefused() {
	s.t.Helper()
	if out := s.remove(); strings.Contains(out, "deleted") || !strings.Contains(out, "VM default.shop runs on node") {
		s.t.Errorf("while a VM runs, kubectl delete says: %s", out)
	}
	s.kubectl("rollout", "status", "-n", system, "--timeout="+limit.String(), "daemonset/godwit-node")
}

// nodeReplaced replaces the pod that a node of godwit is, below a VM: it runs on, and the new pod knows it.
func (s site) nodeReplaced(node *harness.Node) {
	s.t.Helper()
	before, err := node.VMMs()
	if err != nil || len(before) != 1 {
		s.t.Fatalf("node %s has the VMMs %v: %v", node.Name, before, err)
	}
	if got, err := s.AskRedis(s.t.Context(), "shop", "SET", "nonce", "kept"); err != nil || got != "OK" {
		s.t.Fatalf("redis says %q: %v", got, err)
	}
	s.kubectl("delete", "pod", "-n", system, "-l", "app.kubernetes.io/name=godwit-node", "--field-selector",
		"spec.nodeName="+node.Name)
	s.kubectl("rollout", "status", "-n", system, "--timeout="+limit.String(), "daemonset/godwit-node")
	if after, err := node.VMMs(); err != nil || !slices.Equal(before, after) {
		s.t.Errorf("node %s had the VMMs %v, and has %v after its pod was replaced: %v", node.Name, before, after, err)
	}
	if got, err := s.AskRedis(s.t.Context(), "shop", "GET", "nonce"); err != nil || got != "kept" {
		s.t.Errorf("after the node's pod was replaced, redis has %q: %v", got, err)
	}
}

// leader waits for the pod of an operator that leads, and that is another one.
func (s site) leader(other string) (pod string) {
	s.t.Helper()
	if err := harness.Poll(s.t.Context(), limit, func(ctx context.Context) error {
		// The identity of a process is that of its host, with a suffix.
		out, err := s.Kubectl(ctx, "logs", "-n", system, "-l", "app.kubernetes.io/name=godwit-operator", "--prefix",
			"--tail=-1")
		if err != nil {
			return err
		}
		for line := range strings.Lines(out) {
			if name, ok := strings.CutPrefix(line, "[pod/"); ok && strings.Contains(line, "controller serves") {
				if name, _, _ = strings.Cut(name, "/"); name != other {
					pod = name
					return nil
				}
			}
		}
		return fmt.Errorf("no operator but %q has begun to lead: %.2000s", other, out)
	}); err != nil {
		s.t.Fatal(err)
	}
	return pod
}

// webhookAnswers evicts a pod that is no VM, and looks whether the API server got an answer.
func (s site) webhookAnswers() {
	s.t.Helper()
	answered := func() string {
		var lines []string
		for line := range strings.Lines(s.kubectl("get", "--raw", "/metrics")) {
			if strings.HasPrefix(line, "apiserver_admission_webhook_request_total") && strings.Contains(line,
				`code="200"`) && strings.Contains(line, `name="evictions.godwit.dev"`) {
				lines = append(lines, line)
			}
		}
		return strings.Join(lines, "")
	}
	before := answered()
	const pod = `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "other", "namespace": "default"}, "spec": {
		"terminationGracePeriodSeconds": 1, "containers": [{"name": "main", "image": "localhost/godwit/busybox:1",
		"command": ["sleep", "10000"]}]}}`
	if err := harness.Poll(s.t.Context(), limit, func(ctx context.Context) error {
		if err := s.Apply(ctx, pod); err != nil {
			return err
		}
		if _, err := s.Kubectl(ctx, "wait", "--for=condition=Ready", "--timeout="+limit.String(), "pod/other"); err != nil {
			return err
		}
		if err := s.evict(ctx, "other"); err != nil {
			return err
		}
		if _, err := s.Kubectl(ctx, "wait", "--for=delete", "--timeout="+limit.String(), "pod/other"); err != nil {
			return err
		}
		if answered() == before {
			return fmt.Errorf("the webhook has not answered the API server: %s", before)
		}
		return nil
	}); err != nil {
		s.t.Fatal(err)
	}
}

// evict evicts a pod as kubectl drain does.
func (s site) evict(ctx context.Context, pod string) error {
	const eviction = `{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": %q, "namespace": "default"}}`
	file := s.path("eviction.json")
	if err := os.WriteFile(file, fmt.Appendf(nil, eviction, pod), 0o600); err != nil {
		return err
	}
	_, err := s.Kubectl(ctx, "create", "--raw", "/api/v1/namespaces/default/pods/"+pod+"/eviction", "-f", file)
	return err
}
