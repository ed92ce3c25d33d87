package main

import (
	"context"
	"time"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/migrate/engine"
	"godwit.dev/godwit/migrate/loss"
	service "godwit.dev/godwit/migrate/moves"
)

// mender orders VMs of lost nodes elsewhere.
type mender struct {
	*engine.Engine
	*service.Service
}

// watchNodes looks for nodes that have fallen silent, at the controller, each time they were read.
func (m *mover) watchNodes(ctx context.Context, read <-chan struct{}) {
	orders, ok := m.service.(*service.Service)
	if !ok {
		return
	}
	cfg := m.daemon.config
	w := &loss.Watcher{
		Self: cfg.Node, After: time.Duration(cfg.NodeLoss.After), Cluster: m.cluster, Records: m.daemon.records,
		Mover: mender{m.daemon.engine, orders},
	}
	if cfg.NodeLoss.Policy == config.LossNewest {
		w.Fence = loss.Command(cfg.NodeLoss.Fence)
	}
	w.Run(ctx, read)
}
