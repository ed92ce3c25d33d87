package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/api/moves"
	"godwit.dev/godwit/api/version"
	"godwit.dev/godwit/daemon/placement"
	"godwit.dev/godwit/migrate/channel"
	"godwit.dev/godwit/migrate/control"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/engine"
	"godwit.dev/godwit/migrate/incarnation"
	service "godwit.dev/godwit/migrate/moves"
	"godwit.dev/godwit/migrate/peer"
	"godwit.dev/godwit/shim/program"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// mover is this node's part in moves, and, at the controller, everybody's.
type mover struct {
	daemon  *daemon
	peer    *peer.Server
	service nodev1.MovesService

	*control.Controller // nil elsewhere

	service.Outbox // of the events that the controller has not heard of yet

	classes atomic.Pointer[nodev1.NodeInfo] // what VMs have here; nil: that was not asked
}

// classesEvery is how often the shim's binary is asked what VMs have here: a VMM may be upgraded.
const classesEvery = time.Hour

// classify asks what VMs have here, until ctx ends. Only on Kubernetes there is an object that people see it by.
func (m *mover) classify(ctx context.Context, config string) {
	for m.daemon.config.Kubernetes && ctx.Err() == nil {
		cpus, vmms, err := placement.Classes(ctx, program.Path(), config)
		if err != nil {
			slog.WarnContext(ctx, "people do not see which VMs this node takes", "error", err)
		} else {
			m.classes.Store(&nodev1.NodeInfo{CpuClasses: cpus, Vmms: vmms})
		}
		select {
		case <-ctx.Done():
		case <-time.After(classesEvery):
		}
	}
}

func (d *daemon) isController() bool { return len(d.config.Controller.Addresses()) == 0 }

// newMover makes what the engine needs to drive moves. The engine itself comes later.
func (d *daemon) newMover(ctx context.Context, path string) (m *mover, err error) {
	m = &mover{daemon: d, peer: &peer.Server{
		Node: d.config.Node, Records: d.records, Address: d.config.Peer.Advertise, Machines: d.machines, Tasks: d.tasks,
		Departed: d.tasks, Containers: d.tasks, Output: d.config.TaskOutput,
		Placement: &placement.Node{Config: d.config, Tasks: d.tasks, Snapshots: d.snapshots,
			Fits: func(ctx context.Context, offer *machinev1.OfferResponse) (string, error) {
				return placement.Fits(ctx, program.Path(), path, offer)
			}},
	}}
	if !d.isController() {
		m.service = moves.Over(d.remote)
		return m, d.openReporter()
	}
	m.Controller, err = control.Open(ctx, control.Options{
		Config: d.config, Store: d.store, Name: incarnation.StoreOf(d.config),
		Shared: len(d.config.Controller.Etcd.Endpoints) > 0, Records: d.records, Policy: d.policy(), Local: m.peer,
		TLS: d.reach,
	})
	if err != nil {
		return nil, err
	}
	d.whole, d.undo = m.Whole, append(d.undo, m.Controller.Close)
	return m, d.openReporter()
}

func (d *daemon) openReporter() (err error) {
	d.reporter, err = incarnation.NewReporter(d.config.Node, d.config.StateDir, d.whole, d.machines.Held)
	return err
}

// reach is the config to reach another node with. The certificate may come later than
// the daemon.
func (d *daemon) reach(node string) (*tls.Config, error) {
	identity, err := d.identity()
	if err != nil {
		return nil, fmt.Errorf("certificate of the controller (godwit node init makes it): %w", err)
	}
	return identity.ClientOf(node), nil
}

// drivenBy joins mover and engine, which need each other.
func (m *mover) drivenBy(e *engine.Engine) {
	m.peer.Engine = e
	if m.Controller != nil {
		m.DrivenBy(e)
		m.service = m.Moves
	}
}

// serve answers the controller, where peer.listen says so.
func (m *mover) serve(ctx context.Context) error {
	address := m.daemon.config.Peer.Listen
	if address == "" {
		return nil
	}
	identity, err := m.daemon.identity()
	if err != nil {
		return fmt.Errorf("certificate of this node (godwit node init or join makes it): %w", err)
	}
	server, err := controller.NewServer(m.daemon.traced())
	if err != nil {
		return err
	}
	nodev1.RegisterPeerService(server, m.peer)
	listener, err := m.daemon.listenTCP("peer.listen", address)
	if err != nil {
		return err
	}
	pages := channel.Listen(listener, m.daemon.config.LivePagesSocket)
	defer pages.Close()
	return controller.ServePeer(ctx, server, pages, identity)
}

// announce tells the controller that this node lives, for as long as it does.
func (m *mover) announce(ctx context.Context) { service.Live(ctx, m.service, m) }

// Heard implements service.Speaker: it acts on what the controller says of its store, and at the
// controller settles what waits.
func (m *mover) Heard(ctx context.Context, resp *nodev1.AnnounceResponse) error {
	var err error
	if r := m.daemon.reporter; r != nil {
		err = r.Heard(ctx, resp)
	}
	if err == nil && m.Controller != nil {
		err = m.Whole.Maintain(ctx)
	}
	return err
}

// keep has the controller keep what it knows, where this is one.
func (m *mover) keep(ctx context.Context) {
	if m.Controller != nil {
		m.Keep(ctx)
	}
}

// tell has the controller write the events that it has not written.
func (m *mover) tell(ctx context.Context) error {
	if own, ok := m.service.(*service.Service); ok {
		return own.Tell(ctx)
	}
	return nil
}

// Self implements service.Speaker.
func (m *mover) Self() *nodev1.NodeInfo {
	info := &nodev1.NodeInfo{Name: m.daemon.config.Node, Address: m.daemon.config.Peer.Advertise, Version: version.Version,
		Controller: m.daemon.isController(), Execs: true}
	if c := m.classes.Load(); c != nil {
		info.CpuClasses, info.Vmms = c.GetCpuClasses(), c.GetVmms()
	}
	var pool unix.Statfs_t
	if unix.Statfs(m.daemon.config.RAMDir, &pool) == nil {
		info.RamBytes, info.FreeBytes = pool.Blocks*uint64(pool.Bsize), pool.Bavail*uint64(pool.Bsize)
	}
	return info
}
