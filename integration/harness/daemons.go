package harness

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"godwit.dev/godwit/integration/images"
)

// startTimeout of a daemon on a busy machine.
func startTimeout() time.Duration { return Slow(time.Minute) }

// StartContainerd starts the node's containerd, also again after a Kill.
func (n *Node) StartContainerd(ctx context.Context) error {
	first := n.Containerd == nil
	config, _ := n.containerdFile()
	cmd := n.Command(context.WithoutCancel(ctx), "containerd", "--config", config)
	p, err := n.harness.spawn(n.holder, n.Name+"-containerd.log", cmd)
	if err != nil {
		return err
	}
	n.Containerd = p
	if first {
		n.harness.onClose(func() error { return n.Containerd.Stop() })
	}
	return p.ready(ctx, startTimeout(), func(ctx context.Context) error {
		_, err := n.RunCtr(ctx, "version")
		return err
	})
}

// StartGodwitd starts the node's godwitd, also again after a Kill.
func (n *Node) StartGodwitd(ctx context.Context) error {
	first := n.Godwitd == nil
	cmd := n.Command(context.WithoutCancel(ctx), "godwitd", "--config", n.Config)
	p, err := n.harness.spawn(n.holder, n.Name+"-godwitd.log", cmd)
	if err != nil {
		return err
	}
	n.Godwitd = p
	if first {
		n.harness.onClose(func() error { return n.Godwitd.Stop() })
	}
	return p.ready(ctx, startTimeout(), func(ctx context.Context) error {
		_, err := n.RunGodwit(ctx, "ps")
		return err
	})
}

// startDaemons starts the first node as the controller and lets the others join it.
func (h *Harness) startDaemons(ctx context.Context) error {
	if !h.opts.Godwitd {
		return nil
	}
	for i, n := range h.nodes {
		enter := n.initCluster
		if i > 0 {
			enter = n.joinCluster
		}
		if err := enter(ctx); err != nil {
			return err
		}
		if err := n.StartGodwitd(ctx); err != nil {
			return err
		}
	}
	return nil
}

// initCluster makes the cluster's CA and the node's certificate.
func (n *Node) initCluster(ctx context.Context) error {
	_, err := n.RunGodwit(ctx, "node", "init")
	return err
}

// joinCluster brings the node's certificate from the first node, which must run.
func (n *Node) joinCluster(ctx context.Context) error {
	token, err := n.harness.nodes[0].RunGodwit(ctx, "node", "token", fmt.Sprintf("--controller=%v", n.harness.opts.Etcd),
		n.Name)
	if err != nil {
		return err
	}
	file := filepath.Join(n.Dir, "join-token")
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		return err
	}
	first := fmt.Sprintf("%s:%d", nodeAddress(0), controllerPort)
	return Poll(ctx, startTimeout(), func(ctx context.Context) error { // a controller waits ten seconds for a handshake
		_, err := n.RunGodwit(ctx, "node", "join", "--controller", first, "--address", n.Address, "--token-file", file)
		return err
	})
}

// importImages puts the images of the tests on the first node.
func (h *Harness) importImages(ctx context.Context) error {
	if !h.opts.Images {
		return nil
	}
	return h.nodes[0].ImportStandard(ctx)
}

// ImportStandard imports the images that most tests need.
func (n *Node) ImportStandard(ctx context.Context) error {
	h := n.harness
	probe, err := h.Build(ctx, "probe")
	if err != nil {
		return err
	}
	all, err := images.Standard(probe)
	if err != nil {
		return err
	}
	file := filepath.Join(h.Dir, "images.tar")
	if err := images.Write(file, all...); err != nil {
		return err
	}
	defer os.Remove(file)
	return n.Import(ctx, file, "")
}

// Import imports an image archive; an empty snapshotter is containerd's default.
func (n *Node) Import(ctx context.Context, file, snapshotter string) error {
	args := []string{"images", "import", "--local"}
	if snapshotter != "" {
		args = append(args, "--snapshotter", snapshotter)
	}
	if _, err := n.RunCtr(ctx, append(args, file)...); err != nil {
		return fmt.Errorf("import %s: %w", filepath.Base(file), err)
	}
	return nil
}
