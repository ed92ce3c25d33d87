// Package operator makes VirtualMachines, sets and orders what they should be. Each controller observes, decides by
// package decide, and makes one thing.
package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/authority"
	"godwit.dev/godwit/migrate/kubernetes/metrics"
	"godwit.dev/godwit/migrate/kubernetes/pods"
	"godwit.dev/godwit/migrate/kubernetes/schema"
	"godwit.dev/godwit/migrate/kubernetes/store"
)

const lease = "godwit-operator"

const (
	// leaseRenewed is how long the API server may be away before the program ends, as it leads no more.
	leaseRenewed = 25 * time.Second
	// leaseLasts is how long a program that was killed keeps the next one from leading.
	leaseLasts = 30 * time.Second
	// workers of each controller: so many objects are looked at, at once. A look mostly waits for the API server.
	workers = 8
	// endBound is how long the program waits for its parts when it is told to end.
	endBound = 7 * time.Second
)

func ptr[T any](v T) *T { return &v }

// Options of an operator.
type Options struct {
	Config    *rest.Config
	Namespace string // of its lease, and of what the store keeps in addition to records
	Log       *slog.Logger
	Engine    Engine // nil: each order is refused
	OnStop    bool   // the nodes' shims hibernate at a stop
	// ShutdownGrace is what kubelets give pods when their node shuts down.
	ShutdownGrace time.Duration
	// Ask is how the pod of a VM that keeps its addresses asks the network of the nodes for them.
	Ask []pods.AddressAnnotation
	// Schemas compares those of the API server with those of this build. nil: one is made.
	Schemas *schema.Guard
	// Resync is how often everything is looked at although nothing has changed. 0: the framework's, some ten hours.
	Resync time.Duration
	// EndRound is how often it looks for Sandboxes and sets that are gone. 0: each minute.
	EndRound time.Duration
	// Manager has more in it; it has a runnable of the caller's, as the server of webhooks.
	Manager func(manager.Manager) error
	// Metrics is where they are served (metrics.Served), and MetricsCerts the directory with the certificate.
	Metrics, MetricsCerts string
	// Health is an address that answers whether the program lives (/healthz), and whether it serves (/readyz).
	Health string
}

// Scheme of all kinds that the operator uses.
func Scheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("make scheme: %w", err)
	}
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("make scheme: %w", err)
	}
	return scheme, nil
}

// base is what each controller has.
type base struct {
	client  client.Client // writes, and reads from the cache
	cached  View
	current View // reads from the API server
	records records
	engine  Engine
	events  events.EventRecorder
}

// Run runs the operator until ctx ends. Of several, one leads and the others wait.
func Run(ctx context.Context, o Options) error {
	scheme, err := Scheme()
	if err != nil {
		return err
	}
	ours, err := labels.NewRequirement(pods.LabelVM, selection.Exists, nil)
	if err != nil {
		return fmt.Errorf("select pods: %w", err)
	}
	var resync *time.Duration
	if o.Resync > 0 {
		resync = &o.Resync
	}
	if err := schemasReady(ctx, &o); err != nil {
		return err
	}
	ctrl.SetLogger(Logger(o.Log)) // what the framework says outside of the manager
	again := true                 // an operator that is started again in one process has controllers of the same names
	mgr, err := ctrl.NewManager(o.Config, ctrl.Options{
		Scheme: scheme, Logger: Logger(o.Log), Metrics: metrics.Served(o.Metrics, o.MetricsCerts),
		Cache: cache.Options{SyncPeriod: resync, ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}:    {Label: labels.NewSelector().Add(*ours)},
			&corev1.Secret{}: {Namespaces: map[string]cache.Config{o.Namespace: {}}},
			&certificates.CertificateSigningRequest{}: {
				Field: fields.OneTermEqualSelector("spec.signerName", authority.Signer)}}},
		LeaderElection: true, LeaderElectionID: lease, LeaderElectionNamespace: o.Namespace,
		LeaderElectionReleaseOnCancel: true, LeaseDuration: ptr(leaseLasts), RenewDeadline: ptr(leaseRenewed),
		GracefulShutdownTimeout: ptr(endBound), HealthProbeBindAddress: o.Health,
		Controller: config.Controller{SkipNameValidation: &again, MaxConcurrentReconciles: workers},
	})
	if err != nil {
		return fmt.Errorf("start operator: %w", err)
	}
	st, err := store.Open(o.Config, o.Namespace)
	if err != nil {
		return err
	}
	view := func(r client.Reader) View {
		return View{Reader: r, Engine: o.Engine != nil, OnStop: o.OnStop, Ask: o.Ask,
			Machine: st.Machine, Schemas: o.Schemas}
	}
	b := base{client: mgr.GetClient(), cached: view(mgr.GetClient()), current: view(mgr.GetAPIReader()),
		records: records{store: st, service: controller.New(st), cached: mgr.GetClient()}, engine: o.Engine,
		events: mgr.GetEventRecorder(lease)}
	b.cached.decoded = &decoded{}
	b.cached.Schemas = nil // what a cache tells may be older than the schemas
	b.cached.Secrets, b.current.Secrets = mgr.GetAPIReader(), mgr.GetAPIReader()
	for _, add := range []func(ctrl.Manager, base) error{addVM, addSet, addOperation,
		addSnapshot(o.Namespace), addEnds(cmp.Or(o.EndRound, endRound))} {
		if err := add(mgr, b); err != nil {
			return fmt.Errorf("start operator: %w", err)
		}
	}
	if err := watchSchemas(mgr, o); err != nil {
		return fmt.Errorf("start operator: %w", err)
	}
	for _, c := range []prometheus.Collector{figures{cached: mgr.GetClient(), log: o.Log}, o.Schemas} {
		if err := mgr.Add(metrics.Leading{Collector: c}); err != nil {
			return fmt.Errorf("start operator: %w", err)
		}
	}
	// A process that leads and one that waits to lead are both ready. Each part adds what has to be in addition.
	err = errors.Join(mgr.AddHealthzCheck("lives", healthz.Ping), mgr.AddReadyzCheck("lives", healthz.Ping))
	if err != nil {
		return fmt.Errorf("start operator: %w", err)
	}
	if o.Manager != nil {
		if err := o.Manager(mgr); err != nil {
			return err
		}
	}
	switch err := mgr.Start(ctx); {
	case err != nil && ctx.Err() != nil: // it was told to end, and did. Caches end late while the API server is away
		o.Log.WarnContext(ctx, "operator ended before all of it did", "error", err)
	case err != nil:
		return fmt.Errorf("run operator: %w", err)
	}
	return nil
}
