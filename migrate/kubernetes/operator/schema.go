package operator

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/metrics"
	"godwit.dev/godwit/migrate/kubernetes/schema"
)

// The resources whose objects say what is wanted.
const (
	ofVMs        = "virtualmachines"
	ofSets       = "virtualmachinesets"
	ofOperations = "vmoperations"
	ofSnapshots  = "vmsnapshots"
	ofContents   = "vmsnapshotcontents"
	ofRecords    = "vmrecords"
	ofNodes      = "godwitnodes"
)

// schemaRound is how often a program that leads looks at the schemas although nothing is to be done. One that waits for
// them looks each schema.Again.
const schemaRound = time.Minute

// whole refuses an object without a field that each has by its schema, as the field has a default or is required: the
// API server has left it away, and maybe others. A VM without operatingMode would be one that is to run.
func whole(o client.Object) error {
	lacks := ""
	switch o := o.(type) {
	case *v1alpha1.VirtualMachine:
		lacks = first(map[string]bool{"operatingMode": o.Spec.OperatingMode == "", "network": o.Spec.Network == "",
			"onNodeLoss": o.Spec.OnNodeLoss == "", "eviction.strategy": o.Spec.Eviction.Strategy == ""})
	case *v1alpha1.VirtualMachineSet:
		lacks = first(map[string]bool{"moveScope": o.Spec.MoveScope == "", "onFailure": o.Spec.OnFailure == ""})
	case *v1alpha1.VMOperation:
		lacks = first(map[string]bool{"priority": o.Spec.Priority == ""})
	case *v1alpha1.VMSnapshot:
		lacks = first(map[string]bool{"deletionPolicy": o.Spec.DeletionPolicy == ""})
	case *v1alpha1.VMSnapshotContent:
		lacks = first(map[string]bool{"snapshotRef.uid": o.Spec.SnapshotRef.UID == "",
			"source.nodeName": o.Spec.Source.NodeName == "", "source.podRef.uid": o.Spec.Source.PodRef.UID == ""})
	}
	if lacks == "" {
		return nil
	}
	return fmt.Errorf("%T %s/%s has no spec.%s: %w", o, o.GetNamespace(), o.GetName(), lacks, schema.ErrOutdated)
}

// whole is that function. What lacks a field has the schemas looked at, and so told.
func (v View) whole(ctx context.Context, o client.Object) error {
	err := whole(o)
	if err != nil {
		_ = v.Schemas.Check(ctx)
	}
	return err
}

// first is the first name that is so, in the order of names.
func first(of map[string]bool) (least string) {
	for name, is := range of {
		if is && (least == "" || name < least) {
			least = name
		}
	}
	return least
}

// outdated reports whether nothing may be done by what was read before: the API server may have left fields away.
// Nothing is written then, not even a status: a write would drop those fields for good.
func (b base) outdated(ctx context.Context, resources ...string) (ctrl.Result, bool) {
	if err := b.current.Schemas.Check(ctx, resources...); err != nil {
		return ctrl.Result{RequeueAfter: schema.Again}, true
	}
	return ctrl.Result{}, false
}

// resourcesOf are those that a VM is decided by.
func resourcesOf(o decide.VM) []string {
	all := []string{ofVMs, ofRecords}
	if len(o.Orders) > 0 {
		all = append(all, ofOperations)
	}
	if o.Set != nil {
		all = append(all, ofSets)
	}
	if o.From != nil {
		all = append(all, ofSnapshots, ofContents)
	}
	return all
}

// schemasReady waits until the API server serves the schemas of this build. Until then this process does not want to
// lead: one of the build before may do so, whose fields are served.
func schemasReady(ctx context.Context, o *Options) (err error) {
	if o.Schemas == nil {
		if o.Schemas, err = schema.New(o.Config); err != nil {
			return err
		}
	}
	o.Schemas.Tell(func(name string, err error) { logSchema(o.Log, name, err) })
	why := &unready{}
	defer why.close()
	for {
		err := o.Schemas.Check(ctx)
		if err == nil {
			return nil
		}
		if err := why.say(o.Health, err); err != nil {
			return err
		}
		why.show(ctx, o)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(schema.Again):
		}
	}
}

func logSchema(log *slog.Logger, name string, err error) {
	if err == nil {
		log.Info("the API server serves the schema of this build again", "schema", name)
		return
	}
	log.Error("the operator does nothing under this schema", "schema", name, "error", err)
}

// unready answers for a process that waits for schemas whether it lives and whether it is ready. It shows figures of
// the schemas: maybe all processes wait.
type unready struct {
	server *http.Server
	why    atomic.Value
	hide   context.CancelFunc
	hidden chan struct{}
}

// show serves metrics. Without them this process waits as well.
func (u *unready) show(ctx context.Context, o *Options) {
	if o.Metrics == "" || u.hide != nil {
		return
	}
	ctx, u.hide = context.WithCancel(ctx)
	u.hidden = make(chan struct{})
	go func() {
		defer close(u.hidden)
		if err := metrics.Serve(ctx, o.Config, metrics.Served(o.Metrics, o.MetricsCerts), o.Schemas); err != nil {
			o.Log.WarnContext(ctx, "there are no metrics of schemas", "error", err)
		}
	}()
}

func (u *unready) say(address string, why error) error {
	u.why.Store(why.Error())
	if address == "" || u.server != nil {
		return nil
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("serve the health of the operator: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, fmt.Sprint(u.why.Load()), http.StatusInternalServerError)
	})
	u.server = &http.Server{Handler: mux, ReadHeaderTimeout: endBound}
	go func() { _ = u.server.Serve(l) }()
	return nil
}

func (u *unready) close() {
	if u.server != nil {
		_ = u.server.Close()
	}
	if u.hide == nil {
		return
	}
	u.hide()
	select { // the manager listens at the same address
	case <-u.hidden:
	case <-time.After(endBound):
	}
}

// watchSchemas looks at the schemas now and then while this process leads. What changes is told by an event, too.
func watchSchemas(mgr ctrl.Manager, o Options) error {
	recorder := mgr.GetEventRecorder(lease)
	o.Schemas.Tell(func(name string, err error) {
		logSchema(o.Log, name, err)
		about := &corev1.ObjectReference{APIVersion: apiextensionsv1.SchemeGroupVersion.String(),
			Kind: "CustomResourceDefinition", Name: name}
		if err == nil {
			recorder.Eventf(about, nil, corev1.EventTypeNormal, "SchemaServed", "Compare", "the operator goes on")
			return
		}
		recorder.Eventf(about, nil, corev1.EventTypeWarning, "SchemaOutdated", "Compare", "%s", noteOf(err.Error()))
	})
	return mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		tick := time.NewTicker(schemaRound)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-tick.C:
				if err := o.Schemas.Check(ctx); err != nil && ctx.Err() == nil { // it tells of a change alone
					o.Log.WarnContext(ctx, "the operator does nothing under some schemas", "error", err)
				}
			}
		}
	}))
}
