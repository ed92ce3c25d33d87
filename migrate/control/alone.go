package control

import (
	"context"
	"errors"
	"log/slog"
	"net"

	"golang.org/x/sync/errgroup"

	"godwit.dev/godwit/api/version"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/engine"
	"godwit.dev/godwit/migrate/incarnation"
	"godwit.dev/godwit/migrate/moves"
	"godwit.dev/godwit/migrate/pki"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Alone is a controller without VMs of its own. It serves the nodes, and drives moves between them.
type Alone struct {
	*Controller
	reporter *incarnation.Reporter
}

// OpenAlone opens a controller without VMs. Of snapshots, its engine asks whether the store takes one.
func OpenAlone(ctx context.Context, o Options, snapshots engine.Snapshots, opts engine.Options) (*Alone, error) {
	c, err := Open(ctx, o)
	if err != nil {
		return nil, err
	}
	reporter, err := incarnation.NewReporter(o.Config.Node, o.Config.StateDir, c.Whole,
		func() ([]*nodev1.Held, error) { return nil, nil })
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	parts := engine.Parts{Records: o.Records, Peers: c.Peers, Snapshots: snapshots, Store: reporter,
		Places: o.Places, Events: engine.Sinks{engine.Log{Logger: slog.Default()}, c.Journal}}
	if o.Metrics != nil {
		if err := measure(o.Metrics, &parts); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	e := engine.New(parts, opts)
	c.DrivenBy(e)
	if o.Metrics != nil {
		if err := MeasureMoves(o.Metrics, e, c.Whole); err != nil {
			e.Close()
			return nil, errors.Join(err, c.Close())
		}
	}
	return &Alone{Controller: c, reporter: reporter}, nil
}

// Run serves the nodes until ctx ends or the listener fails, and closes the controller.
func (a *Alone) Run(ctx context.Context, l net.Listener, id *pki.Identity) error {
	defer func() {
		a.engine.Close()
		if err := a.Close(); err != nil {
			slog.Warn("close the controller", "error", err)
		}
	}()
	server, err := controller.NewServer()
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return a.Serve(ctx, server, l, id) })
	group.Go(func() error { moves.Live(ctx, a.Moves, a); return nil })
	group.Go(func() error { a.Keep(ctx); return nil })
	group.Go(func() error {
		engine.RunPeriodically(ctx, []engine.Work{{Name: "round", Do: a.round}, {Name: "events", Do: a.Moves.Tell}})
		return nil
	})
	slog.InfoContext(ctx, "controller serves", "address", l.Addr())
	return group.Wait()
}

// round takes up the moves that this controller drives. It has no VM to look at.
func (a *Alone) round(ctx context.Context) error {
	return a.engine.Round(ctx, func() ([]*nodev1.VM, error) { return nil, nil })
}

// Self implements moves.Speaker: other controllers, and the nodes, know by it that this one is up.
func (a *Alone) Self() *nodev1.NodeInfo {
	return &nodev1.NodeInfo{Name: a.Config.Node, Version: version.Version, Controller: true, ControllerOnly: true}
}

// Untold implements moves.Speaker.
func (a *Alone) Untold() []*nodev1.MoveEvent { return nil }

// Told implements moves.Speaker.
func (a *Alone) Told(int) {}

// Heard implements moves.Speaker. It settles what waits after the store was put back from a copy.
func (a *Alone) Heard(ctx context.Context, resp *nodev1.AnnounceResponse) error {
	if err := a.reporter.Heard(ctx, resp); err != nil {
		return err
	}
	return a.Whole.Maintain(ctx)
}
