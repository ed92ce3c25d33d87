package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"

	"godwit.dev/godwit/migrate/connlimit"
	"godwit.dev/godwit/migrate/socket"
)

// Bounds of what a client could leave open: the handshake and the head of a request, and a
// connection between two of them.
const (
	scrapeHeader = 5 * time.Second
	scrapeIdle   = 5 * time.Minute
)

// serveMetrics answers /metrics on the node's unix socket and, where configured, on
// the loopback address that the configuration has checked.
func (d *daemon) serveMetrics(ctx context.Context) error {
	socket, err := socket.Listen(d.config.MetricsSocket())
	if err != nil {
		return err
	}
	listeners := []net.Listener{socket}
	if address := d.config.Metrics.Address; address != "" {
		l, err := d.listenMetrics(address)
		if err != nil {
			return errors.Join(err, socket.Close())
		}
		listeners = append(listeners, l)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", d.starts.Before(promhttp.HandlerFor(d.metrics, promhttp.HandlerOpts{})))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: scrapeHeader, IdleTimeout: scrapeIdle, ConnState: asked}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	var group errgroup.Group
	for _, l := range listeners {
		group.Go(func() error {
			if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				return err
			}
			return nil
		})
	}
	return group.Wait()
}

// asked tells connlimit of a client that has got so far as to ask: where certificates are demanded,
// it has shown one.
func asked(c net.Conn, state http.ConnState) {
	if state == http.StateActive {
		connlimit.Known(c)
	}
}

// listenMetrics demands a node's certificate where the address is reached from outside.
func (d *daemon) listenMetrics(address string) (net.Listener, error) {
	l, err := d.listenTCP("metrics.address", address)
	if err != nil || !d.config.MetricsTLS() {
		return l, err
	}
	identity, err := d.identity()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("metrics.address: %w", err), l.Close())
	}
	return tls.NewListener(l, identity.Server(false)), nil
}
