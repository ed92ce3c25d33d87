package k8s

import (
	"context"
	"os"
	"path/filepath"
	"strconv"

	"godwit.dev/godwit/integration/harness"
)

// Kubectl runs kubectl on the wire as the cluster's administrator.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	return c.wire.Run(ctx, c.program("kubectl"), append([]string{"--kubeconfig=" + c.config("admin"),
		"--cache-dir=" + c.path("cache")}, args...)...)
}

// getPage forwards a port and asks for the page there until there is one.
const getPage = `port=$1; shift; "$@" >/dev/null 2>&1 & trap "kill $!" EXIT
until out=$( { exec 3<>/dev/tcp/127.0.0.1/$port && printf 'GET / HTTP/1.0\r\n\r\n' >&3 && cat <&3; } 2>/dev/null)
do sleep 0.1; done
echo "$out"`

// PortForward answers what an HTTP server on a port of a pod's localhost says, through kubectl port-forward.
func (c *Cluster) PortForward(ctx context.Context, pod string, port int) (string, error) {
	return c.wire.Run(ctx, "bash", "-c", getPage, "bash", strconv.Itoa(port), c.program("kubectl"),
		"--kubeconfig="+c.config("admin"), "--cache-dir="+c.path("cache"), "port-forward", "pod/"+pod, strconv.Itoa(port))
}

// Apply applies a manifest.
func (c *Cluster) Apply(ctx context.Context, manifest string) error {
	file, err := os.CreateTemp(c.server.Dir, "manifest-*.yml")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	if _, err := file.WriteString(manifest); err != nil {
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	_, err = c.Kubectl(ctx, "apply", "-f", filepath.Clean(file.Name()))
	return err
}

// Drain is kubectl drain of a node.
func (c *Cluster) Drain(ctx context.Context, n *harness.Node) (string, error) {
	return c.Kubectl(ctx, "drain", n.Name, "--ignore-daemonsets", "--delete-emptydir-data",
		"--timeout="+readyTime.String())
}
