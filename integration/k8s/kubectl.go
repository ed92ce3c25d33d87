package k8s

import (
	"context"
	"os"
	"path/filepath"
)

// Kubectl runs kubectl on the wire as the cluster's administrator.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	return c.wire.Run(ctx, c.program("kubectl"), append([]string{"--kubeconfig=" + c.config("admin"),
		"--cache-dir=" + c.path("cache")}, args...)...)
}

// Apply applies a manifest.
func (c *Cluster) Apply(ctx context.Context, manifest string) error {
	file, err := os.CreateTemp(c.dir, "manifest-*.yml")
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
