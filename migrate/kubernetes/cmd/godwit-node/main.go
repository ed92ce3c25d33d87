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
	"k8s.io/client-go/kubernetes"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/migrate/kubernetes/apiserver"
	"godwit.dev/godwit/migrate/kubernetes/nodeagent"
	"godwit.dev/godwit/migrate/kubernetes/nodesetup"
)

func main() {
	var s settings
	_ = s.flags().Parse(os.Args[1:]) // an error ends the program
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, s); err != nil && !errors.Is(err, context.Canceled) {
		slog.ErrorContext(ctx, "godwit-node ends", "error", err)
		os.Exit(1)
	}
}

// settings are what flags say.
type settings struct {
	config, kubeconfig, node, namespace string
	setup                               string
	address, defaults, restart          string
	certificate                         bool
	metrics                             string
}

// flags has a set of its own: the framework puts flags of the same names into that of the program.
func (s *settings) flags() *flag.FlagSet {
	f := flag.NewFlagSet("godwit-node", flag.ExitOnError)
	f.StringVar(&s.config, "config", "", "configuration (default: GODWIT_CONFIG, else /etc/godwit/config.toml)")
	f.StringVar(&s.kubeconfig, "kubeconfig", "", "way to the API server (default: that of the pod)")
	f.StringVar(&s.node, "node", os.Getenv("NODE_NAME"), "name of this node in Kubernetes (default: NODE_NAME)")
	f.StringVar(&s.namespace, "namespace", "godwit-system", "of the operator, where the claims of captures are kept")
	f.StringVar(&s.setup, "setup", "", "set up the host whose root is mounted here, and end (default: run as its agent)")
	f.StringVar(&s.address, "address", os.Getenv("NODE_ADDRESS"), "with --setup: its address (default: NODE_ADDRESS)")
	f.StringVar(&s.defaults, "defaults", "/etc/godwit-node", "with --setup: directory of its configuration, *.toml")
	f.StringVar(&s.restart, "restart", "systemctl restart containerd",
		"with --setup: the host's command that restarts containerd")
	f.StringVar(&s.metrics, "metrics", "", "address of metrics, those of godwitd too, by HTTPS and with a token "+
		"unless it is of the loopback interface (default: none)")
	f.BoolVar(&s.certificate, "certificate", false, "renew the certificate of this node")
	return f
}

func run(ctx context.Context, s settings) error {
	if s.setup != "" {
		return setup(ctx, s)
	}
	cfg, err := config.Load(s.config)
	if err != nil {
		return err
	}
	level, err := cfg.Log.Slog()
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	slog.SetDefault(log)
	if s.node == "" {
		return fmt.Errorf("--node: name this node as Kubernetes does, or set NODE_NAME: %w", errdefs.ErrInvalidArgument)
	}
	api, err := apiserver.Config(s.kubeconfig)
	if err != nil {
		return err
	}
	if s.certificate {
		client, err := kubernetes.NewForConfig(api)
		if err != nil {
			return fmt.Errorf("way to the API server: %w", err)
		}
		c := nodesetup.Certificate{Client: client, Dir: cfg.PKIDir(), Node: s.node, Namespace: s.namespace, Log: log}
		go c.Keep(ctx)
	}
	daemon := nodeagent.LocalDaemon(cfg.DaemonSocket())
	defer daemon.Close()
	return nodeagent.Run(ctx, nodeagent.Options{Config: api, Node: s.node, Namespace: s.namespace, Daemon: daemon,
		Log: log, Metrics: s.metrics, Scraped: scrape(cfg.MetricsSocket())})
}

// setup sets the host up. Its first process is that of this container too.
func setup(ctx context.Context, s settings) error {
	api, err := apiserver.Config(s.kubeconfig)
	if err != nil {
		return err
	}
	return nodesetup.Setup{API: api, Root: s.setup, Node: s.node, Address: s.address, Operator: s.namespace,
		Defaults: s.defaults, Restart: s.restart, Host: nodesetup.Init(1), Log: slog.Default()}.Run(ctx)
}
