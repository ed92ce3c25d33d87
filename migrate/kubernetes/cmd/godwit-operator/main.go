// Command godwit-operator makes VirtualMachines and their sets what they should be. It keeps the records of the cluster
// as objects in the API server of Kubernetes, serves them to the nodes, and drives moves. Of several, one leads. It may
// be killed and started again at any time; no VM notices.
package main

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/manager"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/migrate/kubernetes/apiserver"
	"godwit.dev/godwit/migrate/kubernetes/authority"
	"godwit.dev/godwit/migrate/kubernetes/control"
	"godwit.dev/godwit/migrate/kubernetes/eviction"
	"godwit.dev/godwit/migrate/kubernetes/operator"
	"godwit.dev/godwit/migrate/kubernetes/pods"
	"godwit.dev/godwit/migrate/kubernetes/schema"
	"godwit.dev/godwit/migrate/pki"
)

func main() {
	var s settings
	_ = s.flags().Parse(os.Args[1:]) // an error ends the program
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, s); err != nil && !errors.Is(err, context.Canceled) {
		slog.ErrorContext(ctx, "godwit-operator ends", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, s settings) error {
	cfg, err := config.Load(s.config)
	if err != nil {
		return err
	}
	level, err := cfg.Log.Slog()
	if err != nil {
		return err
	}
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})))
	api, err := apiserver.Config(s.kubeconfig)
	if err != nil {
		return err
	}
	api.QPS = -1 // what this program asks is bounded by the API server's own fairness, and by no pace of the client
	var ca *pki.Authority
	if s.authority { // this controller's certificate is made here, too
		if ca, err = authority.Open(ctx, api, s.Namespace); err != nil {
			return err
		}
		if err := ca.Controller(cfg.PKIDir(), cfg.Node); err != nil {
			return err
		}
	}
	if s.Schemas, err = schema.New(api); err != nil {
		return err
	}
	leader, err := control.NewLeader(cfg, api, s.Options)
	if err != nil {
		return err
	}
	s.Config, s.Log, s.Engine = api, slog.Default(), leader
	s.Manager = func(mgr manager.Manager) error { return s.join(mgr, leader, ca, cfg.Node) }
	lead(ctx, s.Options)
	return nil
}

// join adds to a manager what this program is besides the controllers of objects.
func (s settings) join(mgr manager.Manager, leader *control.Leader, ca *pki.Authority, self string) error {
	if err := leader.Join(mgr); err != nil {
		return err
	}
	if ca != nil {
		if err := authority.Join(mgr, ca, s.Namespace, self); err != nil {
			return err
		}
	}
	if s.secret != "" {
		if err := eviction.Rotate(mgr, s.Namespace, s.secret, s.certs); err != nil {
			return err
		}
	}
	if s.webhook == "" {
		return nil
	}
	return eviction.Join(mgr, s.webhook, s.certs, s.OnStop, s.Schemas)
}

// settings are what flags say.
type settings struct {
	config, kubeconfig string
	webhook, certs     string
	secret             string
	authority          bool
	operator.Options
}

// flags has a set of its own: the framework puts flags into that of the program.
func (s *settings) flags() *flag.FlagSet {
	f := flag.NewFlagSet("godwit-operator", flag.ExitOnError)
	f.StringVar(&s.config, "config", "", "configuration (default: GODWIT_CONFIG, else /etc/godwit/config.toml)")
	f.StringVar(&s.kubeconfig, "kubeconfig", "", "way to the API server (default: that of the pod)")
	f.StringVar(&s.Namespace, "namespace", "godwit-system", "where the lease is, and what is known of nodes")
	f.BoolVar(&s.OnStop, "on-stop", true, "the nodes' shims hibernate a VM whose pod is stopped; false while a node "+
		"has a release that cannot")
	f.DurationVar(&s.ShutdownGrace, "shutdown-grace", shutdownGrace, "what the kubelets give pods when their node shuts "+
		"down: shutdownGracePeriod less shutdownGracePeriodCriticalPods")
	f.Func("address-annotation", "NAME=json or NAME=text, more than once too: an annotation by which the pod of a VM "+
		"with network Keep asks for its addresses", func(text string) error {
		a, err := pods.ParseAddressAnnotation(text)
		s.Ask = append(s.Ask, a)
		return err
	})
	f.StringVar(&s.webhook, "webhook", "", "address of the webhook of evictions (default: none)")
	f.StringVar(&s.certs, "webhook-certs", "", "directory with its tls.crt and tls.key")
	f.StringVar(&s.secret, "webhook-secret", "", "Secret of that certificate, to be made and renewed here (default: none)")
	f.BoolVar(&s.authority, "authority", false, "keep the CA of the cluster in the Secret "+authority.SecretName+
		", and sign certificates of nodes")
	f.StringVar(&s.Metrics, "metrics", "", "address of metrics, by HTTPS and with a token unless it is of the loopback "+
		"interface (default: none)")
	f.StringVar(&s.MetricsCerts, "metrics-certs", "", "directory with its tls.crt and tls.key (default: made anew)")
	f.StringVar(&s.Health, "health", "", "address of /healthz and /readyz (default: none)")
	return f
}

// shutdownGrace is what the documentation of kubelets has, 30 s less 10 s for critical pods.
const shutdownGrace = 20 * time.Second

// pause is between two times that this program tries to lead.
const pause = 2 * time.Second

// lead leads, and waits to lead again, until ctx ends. It leads no more when the API server is away for longer than its
// lease lasts.
func lead(ctx context.Context, o operator.Options) {
	for ctx.Err() == nil {
		if err := operator.Run(ctx, o); err != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "operator leads no more, and begins again", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}
