// Package nodeagent carries out the work orders of one node: it captures VMs for VMSnapshots, by the node's godwitd.
//
// It may be killed at any time. godwitd drives a capture on its own, and an order that is looked at again finds it.
package nodeagent

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/metrics"
	"godwit.dev/godwit/migrate/kubernetes/operator"
	"godwit.dev/godwit/migrate/kubernetes/pods"
	"godwit.dev/godwit/migrate/kubernetes/schema"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// ofContents is the resource of work orders.
const ofContents = "vmsnapshotcontents"

// atOnce is how many pods are captured at a time. godwitd has bounds of its own.
const atOnce = 16

// Daemon is the node's godwitd, as far as work orders need it.
type Daemon interface {
	// Checkpoint answers once the operation is durable. One whose id is known begins nothing, and is answered as it is.
	Checkpoint(ctx context.Context, req *nodev1.CheckpointRequest) (*nodev1.StatusResponse, error)
	// Status of an operation, open or closed. NotFound: the records know none of that id.
	Status(ctx context.Context, req *nodev1.StatusRequest) (*nodev1.StatusResponse, error)
	Abort(ctx context.Context, req *nodev1.AbortRequest) (*nodev1.StatusResponse, error)
}

// Options of a node's agent.
type Options struct {
	Config    *rest.Config
	Node      string // as the API server calls it
	Namespace string // of the claims
	Daemon    Daemon
	Log       *slog.Logger
	Claim     time.Duration // 0: decide.ClaimDuration
	// Metrics is where they are served (metrics.Served), with those of godwitd, which Scraped answers.
	Metrics string
	Scraped http.Handler
}

// ScrapePath is where the metrics of the node's godwitd are.
const ScrapePath = "/metrics/godwitd"

// agent is what both controllers have.
type agent struct {
	client  client.Client // writes, and reads from the cache
	current operator.View // reads from the API server
	node    string
	daemon  Daemon
	claims  claims
	running running
}

// Run carries out work orders until ctx ends. Captures that are under way go on in godwitd.
func Run(ctx context.Context, o Options) error {
	mgr, err := manager(o)
	if err != nil {
		return fmt.Errorf("start the agent of node %s: %w", o.Node, err)
	}
	claim := o.Claim
	if claim == 0 {
		claim = decide.ClaimDuration
	}
	schemas, err := schema.New(o.Config, ofContents)
	if err != nil {
		return fmt.Errorf("start the agent of node %s: %w", o.Node, err)
	}
	schemas.Tell(func(name string, err error) { logSchema(o.Log, name, err) })
	a := &agent{client: mgr.GetClient(), node: o.Node, daemon: o.Daemon,
		current: operator.View{Reader: mgr.GetAPIReader(), Schemas: schemas}}
	if a.claims, err = newClaims(o.Config, o.Namespace, o.Node, claim); err != nil {
		return err
	}
	if err := addWorkOrders(mgr, a); err != nil {
		return fmt.Errorf("start the agent of node %s: %w", o.Node, err)
	}
	if err := addCaptures(mgr, a); err != nil {
		return fmt.Errorf("start the agent of node %s: %w", o.Node, err)
	}
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("run the agent of node %s: %w", o.Node, err)
	}
	return nil
}

// outdated is an error unless the API server serves orders by the schema of this build. Nothing is done then by what
// was read before: it may lack where the snapshot goes. A write would drop that for good.
func (a *agent) outdated(ctx context.Context) error {
	return a.current.Schemas.Check(ctx, ofContents)
}

func logSchema(log *slog.Logger, name string, err error) {
	if err == nil {
		log.Info("the API server serves the schema of this build again", "schema", name)
		return
	}
	log.Error("the agent does nothing under this schema", "schema", name, "error", err)
}

// manager watches this node's orders, and the pods of VMs at this node. It sees no others.
func manager(o Options) (ctrl.Manager, error) {
	scheme, err := operator.Scheme()
	if err != nil {
		return nil, err
	}
	ofVMs, err := labels.NewRequirement(pods.LabelVM, selection.Exists, nil)
	if err != nil {
		return nil, err
	}
	log := operator.Logger(o.Log)
	ctrl.SetLogger(log)
	served := metrics.Served(o.Metrics, "")
	if o.Scraped != nil {
		served.ExtraHandlers = map[string]http.Handler{ScrapePath: o.Scraped}
	}
	again := true // an agent that is started again in one process has controllers of the same names
	return ctrl.NewManager(o.Config, ctrl.Options{
		Scheme: scheme, Logger: log, Metrics: served,
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}: {Label: labels.NewSelector().Add(*ofVMs),
				Field: fields.OneTermEqualSelector("spec.nodeName", o.Node)},
			&v1alpha1.VMSnapshotContent{}: {Label: labels.SelectorFromSet(labels.Set{
				decide.LabelNode: decide.NodeLabel(o.Node)})},
		}},
		Controller: config.Controller{SkipNameValidation: &again},
	})
}
