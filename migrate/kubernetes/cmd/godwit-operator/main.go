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
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/migrate/kubernetes/control"
	"godwit.dev/godwit/migrate/kubernetes/operator"
)

func main() {
	flag := flag.NewFlagSet(os.Args[0], flag.ExitOnError) // a package has flags of its own in the common one
	path := flag.String("config", "", "configuration (default: GODWIT_CONFIG, else /etc/godwit/config.toml)")
	kubeconfig := flag.String("kubeconfig", "", "way to the API server (default: that of the pod)")
	namespace := flag.String("namespace", "godwit-system", "where what is known of nodes is kept")
	_ = flag.Parse(os.Args[1:]) // it exits
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
	defer wait(ctx, func(ctx context.Context) {
		objects(ctx, operator.Options{Config: api, Namespace: namespace, Log: slog.Default()})
	})()
	return c.Run(ctx)
}

// wait begins f, and answers what ends it and waits for its end.
func wait(ctx context.Context, f func(context.Context)) func() {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { defer close(done); f(ctx) }()
	return func() { cancel(); <-done }
}

// pause is between two runs of the controllers of objects.
const pause = 2 * time.Second

// objects runs the controllers of objects until ctx ends. They end when the API server is away for longer than their
// lease lasts. The records are served meanwhile.
func objects(ctx context.Context, o operator.Options) {
	for ctx.Err() == nil {
		if err := operator.Run(ctx, o); err != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "the controllers of objects ended, and begin again", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
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
