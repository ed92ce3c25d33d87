package control

import (
	"context"
	"errors"
	"time"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/migrate/engine"
	"godwit.dev/godwit/migrate/loss"
	"godwit.dev/godwit/migrate/moves"
)

// mender orders VMs of lost nodes elsewhere.
type mender struct {
	*engine.Engine
	*moves.Service
}

// Keep has the controller keep what it knows of nodes, the index of the records and its watermark, until ctx ends. It
// looks for nodes that have fallen silent each time they were read.
func (c *Controller) Keep(ctx context.Context) {
	read := make(chan struct{}, 1)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		c.watch(ctx, read)
	}()
	c.Cluster.Keep(ctx, read, func(ctx context.Context) error {
		return errors.Join(c.Cluster.Index(ctx, c.Store, c.Config.Node), c.mark.Maintain(ctx))
	})
	<-watched
}

func (c *Controller) watch(ctx context.Context, read <-chan struct{}) {
	w := &loss.Watcher{
		Self: c.Config.Node, After: time.Duration(c.Config.NodeLoss.After), Cluster: c.Cluster, Records: c.Records,
		Mover: mender{c.engine, c.Moves},
	}
	if c.Config.NodeLoss.Policy == config.LossNewest {
		w.Fence = loss.Command(c.Config.NodeLoss.Fence)
	}
	w.Run(ctx, read)
}
