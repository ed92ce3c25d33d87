package k8s

import (
	"context"
	"fmt"
	"path/filepath"

	"godwit.dev/godwit/integration/controlplane"
)

const (
	// serviceIP is the API server's address for pods. It is one of the wire's, so no kube-proxy is needed.
	serviceIP  = "10.96.0.1"
	services   = "10.96.0.0/16"
	etcdClient = "http://127.0.0.1:2379"
	etcdPeer   = "http://127.0.0.1:2380"
)

func (c *Cluster) users() []controlplane.User {
	all := []controlplane.User{
		{File: "admin", Name: "admin", Groups: "system:masters"},
		{File: "manager", Name: "system:kube-controller-manager"},
		{File: "scheduler", Name: "system:kube-scheduler"},
	}
	for _, n := range c.Nodes() {
		all = append(all, controlplane.User{File: n.Name, Name: "system:node:" + n.Name, Groups: "system:nodes"})
	}
	return all
}

// config is the kubeconfig of a user.
func (c *Cluster) config(name string) string { return c.server.Config(name) }

func (c *Cluster) path(name string) string { return c.server.Path(name) }

// writeKeys writes the key of service accounts, the tokens and the kubeconfigs.
func (c *Cluster) writeKeys(context.Context) error {
	_, err := c.server.WriteKeys(c.users())
	return err
}

// started answers that a program is up: nothing asks it.
func started(context.Context) error { return nil }

// startAPI starts etcd and the API server on the wire.
func (c *Cluster) startAPI(ctx context.Context) error {
	if err := c.startEtcd(ctx); err != nil {
		return err
	}
	return c.startServer(ctx)
}

func (c *Cluster) startEtcd(ctx context.Context) error {
	if _, err := c.wire.Run(ctx, "ip", "addr", "add", serviceIP+"/32", "dev", "br0"); err != nil {
		return err
	}
	if _, err := c.wire.Daemon(ctx, "etcd", started, filepath.Join(filepath.Dir(c.programs), "etcd", "server"),
		c.server.EtcdArgs()...); err != nil {
		return fmt.Errorf("start etcd (make tools builds it): %w", err)
	}
	return nil
}

// startServer starts the API server, also again.
func (c *Cluster) startServer(ctx context.Context) error {
	api, err := c.server.APIArgs("--bind-address=0.0.0.0", "--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement",
		"--service-cluster-ip-range="+services,
		"--kubelet-preferred-address-types=InternalIP",
		"--enable-aggregator-routing") // to webhooks by their endpoints: there is no kube-proxy
	if err != nil {
		return err
	}
	ready := func(ctx context.Context) error { _, err := c.Kubectl(ctx, "get", "--raw", "/readyz"); return err }
	started, err := c.wire.Daemon(ctx, "apiserver", ready, c.program("kube-apiserver"), api...)
	if c.api = started; err == nil && c.opts.Installed {
		// The operators' pods run until their nodes end. As long as they watch, the API server would not end.
		c.OnClose(started.Kill)
	}
	return err
}

// startControl starts the control plane on the wire.
func (c *Cluster) startControl(ctx context.Context) error {
	if err := c.startAPI(ctx); err != nil {
		return err
	}
	// A node that ends is noticed after seconds, not after the minute of the default.
	manager := append(c.as("manager"), "--service-account-private-key-file="+c.path("sa.key"),
		"--root-ca-file="+c.server.CA(), "--use-service-account-credentials",
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
