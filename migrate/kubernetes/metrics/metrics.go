// Package metrics serves the metrics of godwit's programs in Kubernetes, to accounts that may read them.
package metrics

import (
	"context"
	"crypto/tls"
	"fmt"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"godwit.dev/godwit/api/config"
)

// Served are the options of a manager that serves metrics at an address; empty: it serves none. On the loopback
// interface anyone of the host may read them. Elsewhere the reader needs HTTPS and a token of an account that may GET
// the path (nonResourceURLs). certs has tls.crt and tls.key; empty: the certificate is made at the start.
func Served(address, certs string) metricsserver.Options {
	if address == "" {
		return metricsserver.Options{BindAddress: "0"}
	}
	if config.Loopback(address) {
		return metricsserver.Options{BindAddress: address}
	}
	o := metricsserver.Options{BindAddress: address, SecureServing: true,
		FilterProvider: filters.WithAuthenticationAndAuthorization}
	if certs != "" {
		o.TLSOpts = []func(*tls.Config){func(c *tls.Config) { c.GetCertificate = read(certs) }}
	}
	return o
}

// read reads a certificate for each connection. Scrapes are rare, and a file may come late and be replaced.
func read(dir string) func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		cert, err := tls.LoadX509KeyPair(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
		if err != nil {
			return nil, fmt.Errorf("certificate of the metrics: %w", err)
		}
		return &cert, nil
	}
}

// Leading has a manager show figures while it leads: those that wait to lead would tell them once more.
type Leading struct{ prometheus.Collector }

var (
	_ manager.Runnable               = Leading{}
	_ manager.LeaderElectionRunnable = Leading{}
)

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (Leading) NeedLeaderElection() bool { return true }

// Start implements manager.Runnable.
func (l Leading) Start(ctx context.Context) error {
	hide, err := Show(l.Collector)
	if err != nil {
		return err
	}
	defer hide()
	<-ctx.Done()
	return nil
}

// Serve serves figures, and no others of a manager's, until ctx ends: those of a program that has none yet.
func Serve(ctx context.Context, config *rest.Config, o metricsserver.Options, c prometheus.Collector) error {
	hide, err := Show(c)
	if err != nil {
		return err
	}
	defer hide()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return fmt.Errorf("serve metrics: %w", err)
	}
	server, err := metricsserver.NewServer(o, config, client)
	if err != nil {
		return fmt.Errorf("serve metrics: %w", err)
	}
	if server == nil { // it has no address
		return nil
	}
	if err := server.Start(ctx); err != nil {
		return fmt.Errorf("serve metrics: %w", err)
	}
	return nil
}

// Show adds figures to those that managers serve, until hide is called.
func Show(c prometheus.Collector) (hide func(), err error) {
	if err := metrics.Registry.Register(c); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return func() { metrics.Registry.Unregister(c) }, nil
}
