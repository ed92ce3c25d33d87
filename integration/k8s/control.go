package k8s

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"godwit.dev/godwit/integration/harness"
)

const (
	// serviceIP is the API server's address for pods. It is one of the wire's, so no kube-proxy is needed.
	serviceIP  = "10.96.0.1"
	services   = "10.96.0.0/16"
	etcdClient = "http://127.0.0.1:2379"
	etcdPeer   = "http://127.0.0.1:2380"
	keyBits    = 2048
)

// user is one who may use the API server, by a token.
type user struct{ file, name, groups string }

func (c *Cluster) users() []user {
	all := []user{
		{"admin", "admin", "system:masters"},
		{"manager", "system:kube-controller-manager", ""},
		{"scheduler", "system:kube-scheduler", ""},
	}
	for _, n := range c.Nodes() {
		all = append(all, user{n.Name, "system:node:" + n.Name, "system:nodes"})
	}
	return all
}

const kubeconfig = `apiVersion: v1
kind: Config
clusters:
- name: test
  cluster: {server: "https://%s:443", certificate-authority: %s}
users:
- name: test
  user: {token: %s}
contexts:
- name: test
  context: {cluster: test, user: test}
current-context: test
`

// config is the kubeconfig of a user.
func (c *Cluster) config(name string) string { return filepath.Join(c.dir, name+".kubeconfig") }

func (c *Cluster) path(name string) string { return filepath.Join(c.dir, name) }

// writeKeys writes the key of service accounts, the tokens and the kubeconfigs.
func (c *Cluster) writeKeys(context.Context) error {
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return err
	}
	key, err := rsa.GenerateKey(rand.Reader, keyBits)
	if err != nil {
		return fmt.Errorf("make the key of service accounts: %w", err)
	}
	block := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	var tokens strings.Builder
	files := map[string][]byte{c.path("sa.key"): block}
	for i, u := range c.users() {
		token := rand.Text()
		fmt.Fprintf(&tokens, "%s,%s,%d,%q\n", token, u.name, i, u.groups)
		files[c.config(u.file)] = fmt.Appendf(nil, kubeconfig, harness.Gateway, c.path("certs/apiserver.crt"), token)
	}
	files[c.path("tokens.csv")] = []byte(tokens.String())
	for path, data := range files {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// startControl starts the control plane on the wire.
func (c *Cluster) startControl(ctx context.Context) error {
	if _, err := c.wire.Run(ctx, "ip", "addr", "add", serviceIP+"/32", "dev", "br0"); err != nil {
		return err
	}
	etcd := []string{"--data-dir", c.path("etcd"), "--listen-client-urls", etcdClient, "--advertise-client-urls",
		etcdClient, "--listen-peer-urls", etcdPeer, "--initial-advertise-peer-urls", etcdPeer,
		"--initial-cluster", "default=" + etcdPeer, "--unsafe-no-fsync"}
	started := func(context.Context) error { return nil }
	if _, err := c.wire.Daemon(ctx, "etcd", started, filepath.Join(filepath.Dir(c.programs), "etcd", "server"),
		etcd...); err != nil {
		return fmt.Errorf("start etcd (make tools builds it): %w", err)
	}
	key := c.path("sa.key")
	api := []string{"--etcd-servers=" + etcdClient, "--bind-address=0.0.0.0", "--advertise-address=" + harness.Gateway,
		"--secure-port=443", "--cert-dir=" + c.path("certs"), "--service-account-key-file=" + key,
		"--service-account-signing-key-file=" + key, "--service-account-issuer=https://kubernetes.default.svc",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--token-auth-file=" + c.path("tokens.csv"), "--service-cluster-ip-range=" + services, "--allow-privileged=true",
		"--kubelet-preferred-address-types=InternalIP"}
	ready := func(ctx context.Context) error { _, err := c.Kubectl(ctx, "get", "--raw", "/readyz"); return err }
	if _, err := c.wire.Daemon(ctx, "apiserver", ready, c.program("kube-apiserver"), api...); err != nil {
		return err
	}
	// A node that ends is noticed after seconds, not after the minute of the default.
	manager := append(c.as("manager"), "--service-account-private-key-file="+key,
		"--root-ca-file="+c.path("certs/apiserver.crt"), "--use-service-account-credentials",
		"--node-monitor-period=1s", "--node-monitor-grace-period=8s", "--flex-volume-plugin-dir="+c.path("flex"))
	if _, err := c.wire.Daemon(ctx, "manager", started, c.program("kube-controller-manager"), manager...); err != nil {
		return err
	}
	_, err := c.wire.Daemon(ctx, "scheduler", started, c.program("kube-scheduler"), c.as("scheduler")...)
	return err
}

func (c *Cluster) program(name string) string { return filepath.Join(c.programs, name) }

// as is how a part of the control plane presents itself.
func (c *Cluster) as(name string) []string {
	config := c.config(name)
	return []string{"--kubeconfig=" + config, "--authentication-kubeconfig=" + config,
		"--authorization-kubeconfig=" + config, "--leader-elect=false", "--bind-address=127.0.0.1"}
}
