package k8s

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"godwit.dev/godwit/integration/harness"
)

// kubeletConfig is what a kubelet needs. Without failCgroupV1 it does not start on a host of cgroup v1. Every other
// setting keeps it off the host or makes it quick.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
failSwapOn: false
containerRuntimeEndpoint: unix://%[1]s
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
nodeLeaseDurationSeconds: 4
nodeStatusUpdateFrequency: 2s
syncFrequency: 5s
configMapAndSecretChangeDetectionStrategy: Watch
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
evictionHard: {memory.available: "50Mi"}
volumePluginDir: %[2]s/volumeplugins
crashLoopBackOff: {maxContainerRestartPeriod: 2s}
`

// ownSettings are the kernel's, which a kubelet writes: plain files lie over them, so that it changes no host.
const ownSettings = `set -e
for pair in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
	kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
	file=/run/sysctl/${pair%%=*}
	mkdir -p "${file%/*}"
	echo "${pair#*=}" >"$file"
	mount --bind "$file" "/proc/sys/${pair%%=*}"
done`

// inOwnCgroups runs a program in the node's cgroups: who enters a node sees them, and is not in them yet.
const inOwnCgroups = `for procs in /sys/fs/cgroup/*/cgroup.procs /sys/fs/cgroup/cgroup.procs; do
	case $procs in
	/sys/fs/cgroup/cgroup.procs | */kubepods/*) continue ;;
	esac
	echo $$ >"$procs" || true
done 2>/dev/null
exec "$@"`

// startKubelets makes every node of the harness one of Kubernetes.
func (c *Cluster) startKubelets(ctx context.Context) error {
	for _, n := range c.Nodes() {
		if _, err := n.Run(ctx, "sh", "-c", ownSettings); err != nil {
			return err
		}
		config := fmt.Sprintf(kubeletConfig, n.Socket, n.Dir)
		if err := os.WriteFile(filepath.Join(n.Dir, "kubelet.yml"), []byte(config), 0o600); err != nil {
			return err
		}
		if err := c.StartKubelet(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// StartKubelet starts a node's kubelet, also again after a Stop or Kill, and answers when it serves.
func (c *Cluster) StartKubelet(ctx context.Context, n *harness.Node) error {
	dir := func(name string) string { return filepath.Join(n.Dir, name) }
	healthy := func(ctx context.Context) error {
		_, err := n.Run(ctx, "busybox", "wget", "-q", "-O", "-", "http://127.0.0.1:10248/healthz")
		return err
	}
	p, err := n.Daemon(ctx, "kubelet", healthy, "sh", "-c", inOwnCgroups, "kubelet", c.program("kubelet"),
		"--config="+dir("kubelet.yml"), "--kubeconfig="+c.config(n.Name), "--root-dir="+dir("kubelet"),
		"--cert-dir="+dir("pki"), "--hostname-override="+n.Name, "--node-ip="+n.Address)
	if err != nil {
		return fmt.Errorf("start kubelet of node %s: %w", n.Name, err)
	}
	c.kubelets[n.Name] = p
	return nil
}

// Kubelet is that of a node.
func (c *Cluster) Kubelet(n *harness.Node) *harness.Process { return c.kubelets[n.Name] }

// readyTime bounds what the cluster needs for its first minutes' work on a busy machine.
const readyTime = 3 * time.Minute

// runtimeClass is the one that the pods of all cases name. Its overhead is what a VM without KVM costs its host.
const runtimeClass = `{"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "godwit"},
	"handler": %q, "overhead": {"podFixed": {"memory": "700Mi", "cpu": "100m"}}}`

// prepare waits until pods may come: the nodes are ready, and the account exists that they run as.
func (c *Cluster) prepare(ctx context.Context) error {
	if !c.opts.Installed {
		if err := c.Apply(ctx, fmt.Sprintf(runtimeClass, c.opts.Handler)); err != nil {
			return err
		}
	}
	return harness.Poll(ctx, readyTime, func(ctx context.Context) error {
		if _, err := c.Kubectl(ctx, "get", "serviceaccount", "default"); err != nil {
			return err
		}
		for _, n := range c.Nodes() {
			if _, err := c.Kubectl(ctx, "wait", "--for=condition=Ready", "--timeout=10s", "node/"+n.Name); err != nil {
				return err
			}
		}
		return nil
	})
}
