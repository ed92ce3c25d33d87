// Package apitest gives tests a real API server that has godwit's schemas.
package apitest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"godwit.dev/godwit/integration/controlplane"
)

// Server is an API server for the tests of a package.
type Server struct {
	*controlplane.Local
	root string // of the repository
}

// Main runs the tests of a package with a server: call it from TestMain.
func Main(m *testing.M, set func(*Server)) int {
	dir, err := os.MkdirTemp("", "godwit-k8s-")
	if err == nil {
		defer os.RemoveAll(dir)
		var s *Server
		if s, err = Start(context.Background(), dir); err == nil {
			defer s.Stop()
			set(s)
			return m.Run()
		}
	}
	fmt.Fprintln(os.Stderr, "start an API server:", err)
	return 1
}

// Start starts a server in dir, and installs schemas and rights as a person does.
func Start(ctx context.Context, dir string) (*Server, error) {
	root, err := repository()
	if err != nil {
		return nil, err
	}
	local, err := controlplane.Start(ctx, dir, filepath.Join(root, "bin", "tools"))
	if err != nil {
		return nil, err
	}
	s := &Server{Local: local, root: root}
	packaging := filepath.Join(root, "packaging", "kubernetes")
	for _, args := range [][]string{
		{"apply", "-k", filepath.Join(packaging, "crd")},
		{"wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"},
		{"apply", "-f", filepath.Join(packaging, "system", "namespace.yaml")},
		{"apply", "-k", filepath.Join(packaging, "rbac")},
	} {
		if _, err := s.Kubectl(ctx, "", args...); err != nil {
			s.Stop()
			return nil, err
		}
	}
	return s, nil
}

// repository answers the top of the work tree; a test runs in its package's directory.
func repository() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "packaging", "kubernetes", "crd")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("find packaging/kubernetes/crd: %w", os.ErrNotExist)
		}
	}
}

// REST is how a client of the administrator finds the server.
func (s *Server) REST() *rest.Config {
	return &rest.Config{Host: "https://" + s.Address, BearerToken: s.Token, TLSClientConfig: rest.TLSClientConfig{
		CAFile: s.CA()}, QPS: -1}
}

// System is the namespace of godwit's own objects.
const System = "godwit-system"

// Account is how one of godwit's programs finds the server: with the rights of its account, and no others.
func (s *Server) Account(name string) *rest.Config {
	config := s.REST()
	config.Impersonate.UserName = "system:serviceaccount:" + System + ":" + name
	return config
}

// Kubeconfig is the file by which the administrator finds the server.
func (s *Server) Kubeconfig() string { return s.Config(controlplane.Admin) }

// KubectlProgram is the path of kubectl.
func (s *Server) KubectlProgram() string {
	return filepath.Join(s.root, "bin", "tools", "k8s", "kubectl")
}

// Kubectl runs kubectl as the administrator, with a manifest as its input.
func (s *Server) Kubectl(ctx context.Context, manifest string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, s.KubectlProgram(),
		append([]string{"--kubeconfig", s.Kubeconfig(), "--cache-dir", s.Path("cache")}, args...)...)
	cmd.Stdin = strings.NewReader(manifest)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("kubectl %v: %w: %s", args, err, out)
	}
	return string(out), nil
}
