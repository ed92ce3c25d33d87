package main

import (
	"context"
	"errors"
	"net/http"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/daemon/dashboard"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/socket"
)

// looked is what the dashboard shows: the services that the command line asks.
type looked struct {
	nodev1.NodeService
	cluster nodev1.MovesService
}

// Nodes implements dashboard.Source.
func (l looked) Nodes(ctx context.Context, req *nodev1.NodesRequest) (*nodev1.NodesResponse, error) {
	return l.cluster.Nodes(ctx, req)
}

// Moves implements dashboard.Source.
func (l looked) Moves(ctx context.Context, req *nodev1.MovesRequest) (*nodev1.MovesResponse, error) {
	return l.cluster.List(ctx, req)
}

// serveDashboard answers the web page on a unix socket, to whom the daemon's own socket answers.
func (d *daemon) serveDashboard(ctx context.Context) error {
	l, err := socket.Listen(d.config.DashboardSocket())
	if err != nil {
		return err
	}
	page := dashboard.New(d.config.Node, looked{NodeService: d.node, cluster: d.moves.service})
	server := &http.Server{Handler: page, ReadHeaderTimeout: scrapeHeader, IdleTimeout: scrapeIdle}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(controller.Local{Listener: l}); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
