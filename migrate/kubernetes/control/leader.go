package control

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/migrate/engine"
	"godwit.dev/godwit/migrate/kubernetes/metrics"
	"godwit.dev/godwit/migrate/kubernetes/operator"
	"godwit.dev/godwit/migrate/kubernetes/places"
	"godwit.dev/godwit/migrate/kubernetes/pods"
	"godwit.dev/godwit/migrate/kubernetes/schema"
	"godwit.dev/godwit/migrate/kubernetes/store"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Leader is the controller of the one operator that leads. It is opened when its process begins to lead: what is known
// of nodes is read then, since another one has written it before. Until then each order is Unavailable.
type Leader struct {
	open   func(ctx context.Context, places engine.Places) (operator.Engine, func(context.Context) error, error)
	onStop bool
	grace  time.Duration // at a shutdown
	ask    []pods.AddressAnnotation
	// machine is that of operator.View.
	machine func(ctx context.Context, node string) (store.Machine, error)
	schemas *schema.Guard // nil: they are not looked at
	notes   Notes
	places  *places.Places
	pods    *Pods
	nodes   *operator.Nodes

	mu     sync.Mutex
	orders operator.Engine // nil: it does not lead
}

var (
	_ operator.Engine                = (*Leader)(nil)
	_ manager.Runnable               = (*Leader)(nil)
	_ manager.LeaderElectionRunnable = (*Leader)(nil)
)

// NewLeader takes what Open takes, and what the pods of VMs are made by. A configuration that is no controller's is
// refused, before this process waits to lead.
func NewLeader(cfg *config.Config, api *rest.Config, o operator.Options) (*Leader, error) {
	if _, err := identityOf(cfg); err != nil {
		return nil, err
	}
	records, err := store.Open(api, o.Namespace)
	if err != nil {
		return nil, err
	}
	l := &Leader{onStop: o.OnStop, grace: o.ShutdownGrace, ask: o.Ask, machine: records.Machine, schemas: o.Schemas,
		notes: records}
	l.open = func(ctx context.Context, places engine.Places) (operator.Engine, func(context.Context) error, error) {
		figures := prometheus.NewRegistry() // each time it leads its counters begin at 0
		c, err := Open(ctx, cfg, api, o.Namespace, places, l.pods, figures)
		if err != nil {
			return nil, nil, err
		}
		run := func(ctx context.Context) error {
			hide, err := metrics.Show(figures)
			if err != nil {
				return errors.Join(err, c.Close())
			}
			defer hide()
			return c.runWith(ctx, l.nodes)
		}
		return NewOrders(c.Driver(), c.Peers, c.Moves.Recover, c.Records), run, nil
	}
	return l, nil
}

// Join has a manager run the controller while it leads.
func (l *Leader) Join(mgr manager.Manager) error {
	l.places = &places.Places{Cached: mgr.GetClient(), Writer: mgr.GetClient(),
		Current: operator.View{Reader: mgr.GetAPIReader(), Engine: true, OnStop: l.onStop, Ask: l.ask,
			Machine: l.machine, Schemas: l.schemas}, Events: mgr.GetEventRecorder("godwit-operator")}
	l.pods = &Pods{View: l.places.Current, Events: mgr.GetEventRecorder("godwit-operator"), Writer: mgr.GetClient(),
		Orders: l, Notes: l.notes, ShutdownGrace: l.grace}
	l.nodes = &operator.Nodes{Client: mgr.GetClient(), Current: l.places.Current}
	if err := l.pods.joinLogins(mgr); err != nil {
		return err
	}
	if err := mgr.Add(l); err != nil {
		return fmt.Errorf("add the controller: %w", err)
	}
	return nil
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*Leader) NeedLeaderElection() bool { return true }

// Start implements manager.Runnable: it serves the nodes, and drives, until ctx ends.
func (l *Leader) Start(ctx context.Context) error {
	orders, run, err := l.open(ctx, l.places)
	if err != nil {
		return err
	}
	l.set(orders)
	defer l.set(nil)
	return run(ctx)
}

func (l *Leader) set(orders operator.Engine) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.orders = orders
}

func (l *Leader) leads() (operator.Engine, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.orders == nil {
		return nil, fmt.Errorf("the controller is not open yet: %w", errdefs.ErrUnavailable)
	}
	return l.orders, nil
}

// Order implements operator.Engine.
func (l *Leader) Order(ctx context.Context, order operator.Order) error {
	orders, err := l.leads()
	if err != nil {
		return err
	}
	return orders.Order(ctx, order)
}

// Abort implements operator.Engine.
func (l *Leader) Abort(ctx context.Context, vm *nodev1.VM, id string) error {
	orders, err := l.leads()
	if err != nil {
		return err
	}
	return orders.Abort(ctx, vm, id)
}

// Recover implements operator.Engine.
func (l *Leader) Recover(ctx context.Context, order operator.Order) error {
	orders, err := l.leads()
	if err != nil {
		return err
	}
	return orders.Recover(ctx, order)
}

// GiveUp implements operator.Engine.
func (l *Leader) GiveUp(ctx context.Context, rec *nodev1.Record, hold []string) error {
	orders, err := l.leads()
	if err != nil {
		return err
	}
	return orders.GiveUp(ctx, rec, hold)
}

// Tell implements operator.Engine.
func (l *Leader) Tell(ctx context.Context, told operator.Told) error {
	orders, err := l.leads()
	if err != nil {
		return err
	}
	return orders.Tell(ctx, told)
}

// Ensure implements operator.Engine.
func (l *Leader) Ensure(ctx context.Context, vm *nodev1.VM, uid string) error {
	orders, err := l.leads()
	if err != nil {
		return err
	}
	return orders.Ensure(ctx, vm, uid)
}
