package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"

	"godwit.dev/godwit/api/config"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/api/trace/otlp"
	"godwit.dev/godwit/daemon/adoption"
	"godwit.dev/godwit/daemon/metrics"
	"godwit.dev/godwit/daemon/registry"
	"godwit.dev/godwit/daemon/tracing"
	"godwit.dev/godwit/migrate/connlimit"
	"godwit.dev/godwit/migrate/control"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/engine"
	"godwit.dev/godwit/migrate/history"
	"godwit.dev/godwit/migrate/incarnation"
	"godwit.dev/godwit/migrate/moves"
	"godwit.dev/godwit/migrate/node"
	"godwit.dev/godwit/migrate/socket"
	"godwit.dev/godwit/migrate/store"
	"godwit.dev/godwit/migrate/tasks"
	"godwit.dev/godwit/shim/program"
	"godwit.dev/godwit/shim/rampool"
	"godwit.dev/godwit/shim/starts"
	snapshotstore "godwit.dev/godwit/snapshot/store"
)

// daemon joins the parts of godwitd.
type daemon struct {
	config    *config.Config
	metrics   *prometheus.Registry
	clients   *connlimit.Figures
	starts    *metrics.Starts
	records   nodev1.RecordsService
	remote    *record.Client      // the way to the controller, for all that is asked of it; nil there
	store     store.Store         // of the controller; nil elsewhere
	whole     nodev1.StoreService // that store as a whole, wherever it is
	reporter  *incarnation.Reporter
	moves     *mover
	history   *history.History
	machines  *node.Machines
	tasks     *tasks.Client
	engine    *engine.Engine
	snapshots *registry.Registry
	node      *node.Service
	shims     *adoption.Adopter
	templates *templates
	spans     *otlp.Exporter // nil: nothing is traced
	undo      []func() error
}

// newDaemon makes the parts. It asks nothing of controller, containerd or registry: they
// may come later, and go.
func newDaemon(ctx context.Context, cfg *config.Config, path string) (_ *daemon, err error) {
	d := &daemon{config: cfg, metrics: prometheus.NewRegistry(), machines: &node.Machines{Config: cfg}}
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	if err := makeDirs(cfg); err != nil {
		return nil, err
	}
	if err := d.beOnly(ctx); err != nil {
		return nil, err
	}
	if err := rampool.Mount(cfg.RAMDir, uint64(cfg.RAMSize), uint64(cfg.RAMHugePages)); err != nil {
		return nil, err
	}
	if err := errors.Join(d.openTracing(ctx), d.openRecords(ctx)); err != nil {
		return nil, err
	}
	snapshots := registry.New(cfg)
	snapshots.Logins = d.logins()
	d.snapshots = snapshots
	if d.tasks, err = tasks.New(cfg, path, snapshots.Spec); err != nil {
		return nil, err
	}
	d.tasks.Kept, d.tasks.Called = adoption.KeptDisks{Config: cfg}, d.called
	d.undo = append(d.undo, d.tasks.Close)
	started, err := metrics.NewStarts(starts.File(cfg.StateDir))
	if err != nil {
		return nil, err
	}
	d.undo = append(d.undo, started.Reader.Close)
	if err := d.measure(started); err != nil {
		return nil, err
	}
	counters, err := engine.NewMetrics(d.metrics)
	if err != nil {
		return nil, err
	}
	started.Wake, d.starts = counters.Wake, started
	d.openHistory()
	if d.moves, err = d.newMover(ctx, path); err != nil {
		return nil, err
	}
	d.templates = d.newTemplates(path)
	parts := engine.Parts{
		Golden:  d.templates,
		Store:   d.reporter,
		Records: d.records, Machines: d.machines, Observer: d.machines, Tasks: d.tasks, Departed: d.tasks,
		Snapshots: snapshots, Elsewhere: snapshots.Elsewhere,
		Events: engine.Sinks{engine.Log{Logger: slog.Default()}, counters, d.moves, d.history},
	}
	if d.isController() {
		moved, err := engine.NewMoveMetrics(d.metrics, d.records)
		if err != nil {
			return nil, err
		}
		parts.Peers, parts.Events = d.moves.Peers, engine.Sinks{parts.Events, d.moves.Journal, moved}
	}
	phases, err := engine.NewPhaseMetrics(d.metrics)
	if err != nil {
		return nil, err
	}
	if parts.Steps = []engine.Steps{phases}; d.spans != nil {
		parts.Steps = append(parts.Steps, tracing.Steps{Exporter: d.spans})
	}
	d.engine = engine.New(parts, engineOptions(cfg, snapshots.Repository))
	d.undo = append(d.undo, func() error { d.engine.Close(); return nil })
	d.moves.drivenBy(d.engine)
	if err := d.measureController(); err != nil {
		return nil, err
	}
	d.shims = &adoption.Adopter{Config: cfg, ConfigPath: path, Machines: d.machines, Containers: d.tasks}
	d.node = d.newService(cfg)
	return d, nil
}

// logins are asked for before each push and pull; nil: the node's own login counts. Only operators of Kubernetes have
// some: elsewhere a registry is reached while no controller answers.
func (d *daemon) logins() snapshotstore.Logins {
	if d.remote == nil || !d.config.Kubernetes {
		return nil
	}
	return record.PodsClient{Client: d.remote}
}

// newService makes what clients of this node are served by.
func (d *daemon) newService(cfg *config.Config) *node.Service {
	return &node.Service{
		Config: cfg, Records: d.records, Engine: d.engine, Shims: d.machines, Snapshot: d.snapshots,
		Boots: d.templates.boots, Goldens: d.templates, Reachable: d.reachable,
		Admits: func(ctx context.Context) error { return moves.Admits(ctx, d.moves.service, cfg.Node) },
		Up:     func(ctx context.Context, name string) (bool, error) { return moves.Up(ctx, d.moves.service, name) },
		Checks: d.checks(), Release: d.machines.Release, GiveUp: d.engine.GiveUp, Place: d.snapshots.Repository,
		Containers: d.tasks.Containers, Label: d.tasks.Label, ImageOf: d.tasks.ImageOf, Events: d.history,
		Arriving: d.moves.peer.Expected,
	}
}

// measureController registers the figures that only a controller has.
func (d *daemon) measureController() error {
	if !d.isController() {
		return nil
	}
	return control.MeasureMoves(d.metrics, d.engine, d.whole)
}

// measure registers the figures that are no engine's.
func (d *daemon) measure(started *metrics.Starts) (err error) {
	for _, own := range []prometheus.Collector{control.PendingGauge(d.records),
		metrics.CacheFigures{Cache: d.snapshots.Cache}, started.Seconds, started.Address, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})} {
		if err := d.metrics.Register(own); err != nil {
			return err
		}
	}
	d.clients, err = connlimit.NewFigures(d.metrics)
	return err
}

func engineOptions(cfg *config.Config, repository func(*nodev1.Record) string) engine.Options {
	opts := control.EngineOptions(cfg, repository)
	opts.Retention = engine.Retention{
		Keep: cfg.Retention.Keep, For: time.Duration(cfg.Retention.KeepFor),
		Ended: time.Duration(cfg.Retention.Ended), Grace: time.Duration(cfg.Retention.Grace),
		Scans: cfg.Controller.Address == "",
	}
	return opts
}

// checks are what godwit doctor asks a daemon.
func (d *daemon) checks() []node.Check {
	all := []node.Check{
		{Name: "containerd", Remedy: "start containerd, with the directory of " + program.Name + " in its PATH",
			Ask: d.tasks.Runtime},
		{Name: "records", Remedy: "see docs/how-to/cluster.md, after a store was put back from a copy",
			Ask: node.RecordsFinding(d.whole)},
		{Name: "store", Remedy: "see [registry] of the configuration: address, CA, credentials with the rights to pull " +
			"and push", Ask: d.snapshots.Probe},
		{Name: "right to delete", Remedy: "grant it (docs/how-to/registries.md); until then snapshots pile up and cleanup " +
			"is pending", Ask: d.snapshots.ProbeDelete},
	}
	all = append(all, node.Check{Name: "kept disks", Remedy: "set containerd.address to the containerd that has these " +
		"VMs, or bring its state back; if no VM of them is needed any more, remove its directory in " + d.config.DisksDir(),
		Ask: d.tasks.KeptFinding})
	if st, ok := d.store.(interface {
		Space(ctx context.Context) (string, error)
	}); ok {
		all = append(all, node.Check{Name: "space in etcd", Remedy: "give etcd --auto-compaction-retention 1h and a " +
			"larger --quota-backend-bytes, and defragment it (docs/how-to/cluster.md)", Ask: st.Space})
	}
	if d.isController() {
		all = append(all, node.Check{Name: "one machine a name", Remedy: "give the second machine another name: godwit " +
			"node token NAME, and node in its configuration", Ask: node.NamesFinding(&d.moves.Doubles)})
		all = append(all, node.Check{Name: "who fetches VMs", Ask: node.PullFinding(d.config.Move.Pull)})
	}
	return all
}

// close undoes newDaemon in reverse order.
func (d *daemon) close() {
	for i := len(d.undo) - 1; i >= 0; i-- {
		if err := d.undo[i](); err != nil {
			slog.Warn("close part of the daemon", "error", err)
		}
	}
	d.undo = nil
}

// called is the name of a VM by its record.
func (d *daemon) called(ctx context.Context, vm *nodev1.VM) (string, error) {
	rec, err := d.records.Get(ctx, &nodev1.GetRequest{Vm: vm})
	return rec.GetName(), err
}

func (d *daemon) reachable(ctx context.Context) error {
	_, err := d.records.List(ctx, &nodev1.ListRequest{Node: d.config.Node})
	return err
}

// serve answers until ctx ends or a listener fails.
func (d *daemon) serve(ctx context.Context) error {
	local, err := controller.NewServer(d.traced())
	if err != nil {
		return err
	}
	nodev1.RegisterRecordsService(local, &history.Shims{RecordsService: d.records, History: d.history})
	nodev1.RegisterNodeService(local, d.node)
	nodev1.RegisterStoreService(local, d.whole)
	if d.remote != nil {
		nodev1.RegisterPodsService(local, record.PodsClient{Client: d.remote})
	}
	nodev1.RegisterMovesService(local, &moves.Local{MovesService: d.moves.service, Self: d.config.Node, Node: d.node})
	socket, err := socket.Listen(d.config.DaemonSocket())
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return controller.ServeLocal(ctx, local, socket) })
	group.Go(func() error { return d.servePeers(ctx) })
	group.Go(func() error { return d.moves.serve(ctx) })
	group.Go(func() error { d.moves.announce(ctx); return nil })
	group.Go(func() error { d.moves.keep(ctx); return nil })
	group.Go(func() error { d.moves.classify(ctx, d.shims.ConfigPath); return nil })
	if d.spans != nil {
		group.Go(func() error { tracing.Forward(ctx, d.spans, d.config.StateDir); return nil })
	}
	group.Go(func() error { return d.serveMetrics(ctx) })
	group.Go(func() error { return d.serveDashboard(ctx) })
	group.Go(func() error { d.snapshots.AskRights(ctx); return nil })
	for _, works := range d.periodicWork() {
		group.Go(func() error { engine.RunPeriodically(ctx, works); return nil })
	}
	group.Go(func() error { d.shims.Watch(ctx); return nil })
	group.Go(func() error { d.tasks.WatchDeleted(ctx); return nil })
	group.Go(func() error { d.hear(ctx); return nil })
	group.Go(func() error { d.templates.boots.Run(ctx); return nil })
	d.templates.TakeOver(ctx)
	slog.InfoContext(ctx, "godwitd serves", "socket", d.config.DaemonSocket(), "controller", d.config.Controller.Address)
	return group.Wait()
}

// periodicWork is done in this order: operations need the shims that answer for their VMs, and
// only what no operation holds is missed or left over. Nothing else waits for a scan or a sweep: they ask stores of
// snapshots and nodes that may hang.
func (d *daemon) periodicWork() [][]engine.Work {
	return [][]engine.Work{{
		{Name: "adopt", Do: d.shims.Adopt},
		{Name: "round", Do: func(ctx context.Context) error { return d.engine.Round(ctx, d.machines.List) }},
		{Name: "end", Do: d.shims.End},
		{Name: "orphans", Do: d.tasks.Orphans},
		{Name: "disks", Do: d.tasks.RemoveOrphanDisks},
		{Name: "names", Do: d.node.TellNames},
		{Name: "golden", Do: d.templates.Sweep},
		{Name: "taps", Do: d.machines.RemoveStrayTaps},
		{Name: "cache", Do: func(ctx context.Context) error { return d.snapshots.MaintainCache(ctx, d.records) }},
		{Name: "history", Do: func(ctx context.Context) error { return d.history.Settle(ctx, d.records) }},
		{Name: "events", Do: d.moves.tell}, // last: a store that is out of reach takes its time
	}, {
		{Name: "scan", Do: d.engine.Scan},
	}, {
		{Name: "sweep", Do: d.engine.Sweep},
	}}
}
