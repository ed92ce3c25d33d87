package harness

import (
	"context"
	"crypto/tls"
	"fmt"
	"os/exec"
	"path/filepath"
)

// Where the etcd of Options.Etcd listens on the wire.
const (
	EtcdAddress = Gateway + ":2379"
	etcdPeers   = "127.0.0.1:2380"
)

// EtcdDir is where it keeps its data, and the certificate that it makes for itself.
func (h *Harness) EtcdDir() string { return filepath.Join(h.Dir, "etcd") }

// startEtcd runs a real etcd on the wire, reached by TLS, if the options ask for one.
func (h *Harness) startEtcd(ctx context.Context) error {
	if !h.opts.Etcd {
		return nil
	}
	h.onClose(func() error { return h.Etcd.Stop() })
	return h.ServeEtcd(ctx)
}

// ServeEtcd starts the etcd, also again after a Kill: it goes on with the data that is there.
func (h *Harness) ServeEtcd(ctx context.Context) error {
	client, peers := "https://"+EtcdAddress, "https://"+etcdPeers
	cmd := exec.CommandContext(context.WithoutCancel(ctx), filepath.Join(h.root, "bin", "tools", "etcd", "server"),
		"--data-dir", h.EtcdDir(), "--auto-tls", "--peer-auto-tls", "--listen-client-urls", client, "--advertise-client-urls",
		client,
		"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "default="+peers)
	p, err := h.spawn(h.wire, "etcd.log", cmd)
	if err != nil {
		return fmt.Errorf("start etcd (make tools builds it): %w", err)
	}
	h.Etcd = p
	return p.ready(ctx, startTimeout(), func(ctx context.Context) error {
		c, err := h.Dial(ctx, "tcp", EtcdAddress)
		if err != nil {
			return err
		}
		defer c.Close()
		// That somebody answers is all that is asked here: who that is, the nodes find out.
		return tls.Client(c, &tls.Config{InsecureSkipVerify: true}).HandshakeContext(ctx)
	})
}

// controller is the part of the node's configuration that says who holds the records: the
// first node, or, with an etcd, each of them.
func (n *Node) controller() string {
	if n.harness.opts.Etcd {
		return fmt.Sprintf("[controller]\nlisten = \"%s:%d\"\n[controller.etcd]\nendpoints = [\"https://%s\"]\nca = %q\n",
			n.Address, controllerPort, EtcdAddress, filepath.Join(n.harness.EtcdDir(), "fixtures", "client", "cert.pem"))
	}
	if n.index == 0 {
		return fmt.Sprintf("[controller]\nlisten = \"%s:%d\"\n", n.Address, controllerPort)
	}
	return fmt.Sprintf("[controller]\naddress = \"%s:%d\"\n", nodeAddress(0), controllerPort)
}
