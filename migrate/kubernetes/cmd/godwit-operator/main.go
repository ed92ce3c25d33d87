// Command godwit-operator keeps the records of a cluster as objects in the API server of Kubernetes, serves them to the
// nodes, and drives moves. It may be killed and started again at any time; no VM notices.
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

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/migrate/kubernetes/control"
)

func main() {
	path := flag.String("config", "", "configuration (default: GODWIT_CONFIG, else /etc/godwit/config.toml)")
	kubeconfig := flag.String("kubeconfig", "", "way to the API server (default: that of the pod)")
	namespace := flag.String("namespace", "godwit-system", "where what is known of nodes is kept")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *path, *kubeconfig, *namespace); err != nil && !errors.Is(err, context.Canceled) {
		slog.ErrorContext(ctx, "godwit-operator ends", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, path, kubeconfig, namespace string) error {
	cfg, err := config.Load(path)
	if err != nil {
		return err
	}
	level, err := cfg.Log.Slog()
	if err != nil {
		return err
	}
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})))
	api, err := server(kubeconfig)
	if err != nil {
		return fmt.Errorf("way to the API server: %w", err)
	}
	c, err := control.Open(ctx, cfg, api, namespace)
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

// server is the API server of a kubeconfig, or that of the pod. What this program asks is bounded by the API server's
// own fairness, and by no pace of the client.
func server(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		api, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("%w. Outside a pod of Kubernetes, name the file of the way there: --kubeconfig FILE", err)
		}
		return unpaced(api), nil
	}
	api, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	return unpaced(api), nil
}

func unpaced(api *rest.Config) *rest.Config {
	api.QPS = -1
	return api
}
