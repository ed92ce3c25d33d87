// Package k8s runs Kubernetes: a control plane and nodes, each with a kubelet, a containerd and a godwitd, from pinned
// modules on one host. Its cases are pods of RuntimeClass godwit. Nothing of it stays when it ends.
package k8s

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"godwit.dev/godwit/integration/controlplane"
	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

// Godwit is the runtime handler under test. Another one, runc, shows that a case itself is sound.
const Godwit = "godwit"

// Options of Open.
type Options struct {
	Nodes   int    // 1 or 2
	Handler string // of RuntimeClass godwit
	// Installed has godwit installed by kubectl apply -k, from images of this checkout.
	Installed bool
	Log       func(format string, args ...any)
}

// Cluster is a running Kubernetes.
type Cluster struct {
	*harness.Harness
	opts     Options
	wire     *harness.Node
	server   *controlplane.Server
	programs string // directory
	kubelets map[string]*harness.Process
	api      *harness.Process // the API server
}

// containerdConfig is containerd's part for kubelet.
const containerdConfig = `[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = 'localhost/` + images.SuitePause + `'
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  enable_criu = false
` + harness.Handlers

// Open starts everything and answers when all nodes are ready.
func Open(ctx context.Context, opts Options) (_ *Cluster, err error) {
	root, err := harness.Root()
	if err != nil {
		return nil, err
	}
	tools := filepath.Join(root, "bin", "tools")
	if _, err := os.Stat(filepath.Join(tools, ".k8s")); err != nil {
		return nil, fmt.Errorf("find the programs of Kubernetes (make bin/tools/.k8s): %w", err)
	}
	config := containerdConfig
	if opts.Installed { // the installation brings the handler
		config, _, _ = strings.Cut(config, "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.godwit]")
	}
	h, err := harness.Start(ctx, harness.Options{Nodes: opts.Nodes, CRI: true, Godwitd: !opts.Installed, Log: opts.Log,
		Installed: opts.Installed, Registry: harness.PlainHTTP,
		Containerd: fmt.Sprintf(config, filepath.Join(tools, "runc"))})
	if err != nil {
		return nil, err
	}
	c := cluster(h, tools, opts)
	defer func() {
		if err != nil {
			h.Keep("start")
			err = errors.Join(err, h.Close())
		}
	}()
	steps := []func(context.Context) error{c.writeKeys, c.startControl, c.importImages, c.startKubelets, c.prepare}
	if opts.Installed {
		steps = append(slices.Insert(steps, 0, c.writeNetwork), c.importInstall, c.installGodwit)
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func cluster(h *harness.Harness, tools string, opts Options) *Cluster {
	return &Cluster{Harness: h, opts: opts, wire: h.Wire(), programs: filepath.Join(tools, "k8s"),
		kubelets: map[string]*harness.Process{},
		server: &controlplane.Server{Dir: filepath.Join(h.Dir, "k8s"),
			Address: harness.Gateway + ":443", Etcd: etcdClient, EtcdPeer: etcdPeer}}
}

// importImages puts the images of containerd's own suite on each node, under names of no registry.
func (c *Cluster) importImages(ctx context.Context) error {
	standin, err := c.Build(ctx, "standin")
	if err != nil {
		return err
	}
	all, _, err := images.ForContainerd(standin)
	if err != nil {
		return err
	}
	for i := range all {
		all[i].Name = "localhost/" + all[i].Name
	}
	if c.opts.Installed {
		more, err := c.machines(ctx)
		if err != nil {
			return err
		}
		all = append(all, more...)
	}
	file := c.path("images.tar")
	if err := images.Write(file, all...); err != nil {
		return err
	}
	defer os.Remove(file)
	for _, n := range c.Nodes() {
		if _, err := n.RunCtr(ctx, "--namespace", "k8s.io", "images", "import", "--local", file); err != nil {
			return fmt.Errorf("import images on node %s: %w", n.Name, err)
		}
	}
	return nil
}
