// Command godwit-node carries out the work orders of this node: it has godwitd capture VMs for VMSnapshots. It may be
// killed and started again at any time; a capture that is under way goes on.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/migrate/kubernetes/apiserver"
	"godwit.dev/godwit/migrate/kubernetes/nodeagent"
)

func main() {
	path := flag.String("config", "", "configuration (default: GODWIT_CONFIG, else /etc/godwit/config.toml)")
	kubeconfig := flag.String("kubeconfig", "", "way to the API server (default: that of the pod)")
	node := flag.String("node", os.Getenv("NODE_NAME"), "name of this node in Kubernetes (default: NODE_NAME)")
	namespace := flag.String("namespace", "godwit-system", "where the claims of captures are kept")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *path, *kubeconfig, *node, *namespace); err != nil && !errors.Is(err, context.Canceled) {
		slog.ErrorContext(ctx, "godwit-node ends", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, path, kubeconfig, node, namespace string) error {
	cfg, err := config.Load(path)
	if err != nil {
		return err
	}
	level, err := cfg.Log.Slog()
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	slog.SetDefault(log)
	if node == "" {
		return fmt.Errorf("--node: name this node as Kubernetes does, or set NODE_NAME: %w", errdefs.ErrInvalidArgument)
	}
	api, err := apiserver.Config(kubeconfig)
	if err != nil {
		return err
	}
	daemon := nodeagent.LocalDaemon(cfg.DaemonSocket())
	defer daemon.Close()
	return nodeagent.Run(ctx, nodeagent.Options{Config: api, Node: node, Namespace: namespace, Daemon: daemon, Log: log})
}
