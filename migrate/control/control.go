// Package control joins the parts of a controller: what it knows of the nodes, the store of the records as a whole, the
// way to the nodes, and the service of moves. godwitd has a controller next to its node, the operator of Kubernetes
// has one alone.
package control

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/prometheus/client_golang/prometheus"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/migrate/cluster"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/engine"
	"godwit.dev/godwit/migrate/incarnation"
	"godwit.dev/godwit/migrate/moves"
	"godwit.dev/godwit/migrate/peer"
	"godwit.dev/godwit/migrate/store"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Options of a controller. Config gives its name (node), its state_dir, and what it does about lost nodes.
type Options struct {
	Config  *config.Config
	Store   store.Store // keeps notes too
	Name    string      // of the store: what is remembered of another store says nothing of this one
	Shared  bool        // other controllers write to the store
	Records nodev1.RecordsService
	Policy  controller.Policy
	Local   nodev1.PeerService // the controller's own node; nil: it has no VMs
	Places  engine.Places      // of VMs that are placed later; nil: there are none
	Pods    nodev1.PodsService // nil: the cluster has no pods as objects
	// Metrics has the figures of a controller without VMs; nil: there are none.
	Metrics prometheus.Registerer
	// TLS answers the config to reach a node with.
	TLS func(node string) (*tls.Config, error)
}

// Controller of a cluster.
type Controller struct {
	Options
	Cluster *cluster.State
	Journal *moves.Journal
	Peers   *peer.Peers
	Whole   *controller.Incarnations
	Doubles controller.DuplicateNames // machines that share a name
	Moves   *moves.Service            // nil before DrivenBy

	engine *engine.Engine
	mark   *incarnation.Watermark
}

// Open reads what is known. A store that was put back from a copy is noticed here. An order to put it back that waits
// in state_dir is carried out.
func Open(ctx context.Context, o Options) (*Controller, error) {
	notes, ok := o.Store.(store.Notes)
	if !ok {
		return nil, fmt.Errorf("the store of the records keeps no notes of nodes: %w", errdefs.ErrNotImplemented)
	}
	members, err := cluster.OpenFor(ctx, notes, o.Shared, o.Config.Node)
	if err != nil {
		return nil, err
	}
	c := &Controller{Options: o, Cluster: members, Journal: moves.NewJournal(members.Append)}
	c.Whole = controller.NewIncarnations(o.Store, notes, o.Config.Node, members.Names, nil)
	c.Whole.Reserved = o.Policy.Reserved
	c.Whole.Contradicts = func(node, reason string) { members.Contradicts(ctx, node, reason) }
	c.Whole.Unchecked = members.Unchecked
	c.Doubles.Told = func(node, reason string) { members.NameTwice(ctx, node, reason) }
	if err := incarnation.RestoreOrdered(ctx, o.Config.StateDir, c.Whole); err != nil {
		return nil, errors.Join(err, c.Journal.Close())
	}
	if c.mark, err = incarnation.OpenWatermark(ctx, o.Config.StateDir, o.Name, c.Whole); err != nil {
		return nil, errors.Join(err, c.Journal.Close())
	}
	c.Peers = &peer.Peers{Registry: members, Self: o.Config.Node, Local: o.Local, TLS: o.TLS}
	return c, nil
}

// Close ends the connections, and remembers how far the store is. The engine is closed before.
func (c *Controller) Close() error {
	return errors.Join(c.Journal.Close(), c.Peers.Close(), c.mark.Close())
}

// DrivenBy joins the controller and its engine, which need each other.
func (c *Controller) DrivenBy(e *engine.Engine) {
	c.engine = e
	c.Moves = &moves.Service{Self: c.Config.Node, Records: c.Records, Engine: e, Cluster: c.Cluster, Peer: c.Peers.Peer,
		Store: c.Whole, Pull: c.Policy.Pull}
	if e.Places != nil {
		c.Moves.Placer = e
	}
}

// Driver is the engine that drives moves here.
func (c *Controller) Driver() *engine.Engine { return c.engine }

// EngineOptions are those of an engine by a configuration, without what it retains.
func EngineOptions(cfg *config.Config, repository func(*nodev1.Record) string) engine.Options {
	return engine.Options{
		Node: cfg.Node, Repository: repository,
		Limits:    engine.Limits{All: cfg.Move.Parallel, Out: cfg.Move.Outgoing, In: cfg.Move.Incoming},
		Operation: time.Duration(cfg.Timeouts.Operation), Abort: time.Duration(cfg.Timeouts.Abort),
	}
}
