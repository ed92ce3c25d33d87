package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"

	"godwit.dev/godwit/api/moves"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/operator"
	"godwit.dev/godwit/migrate/kubernetes/pods"
	"godwit.dev/godwit/migrate/kubernetes/schema"
	"godwit.dev/godwit/migrate/kubernetes/store"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

const (
	// again is how long something is waited for that no watch may tell of.
	again = time.Second
	// refusedAgain is how long after a refusal that may pass an order is tried again.
	refusedAgain = 10 * time.Second
	// abortTimeout bounds the call that ends a capture whose claim was lost.
	abortTimeout = 10 * time.Second
)

// captures captures the pods that were promoted. Events of pods start it, and those of orders do not. Each pod is
// captured once at a time: it is one key of the queue.
type captures struct{ *agent }

func addCaptures(mgr ctrl.Manager, a *agent) error {
	return ctrl.NewControllerManagedBy(mgr).Named("capture").For(&corev1.Pod{}).
		WithOptions(controller.Options{MaxConcurrentReconciles: atOnce}).
		Complete(schema.Calm(captures{a}.reconcile))
}

func (r captures) observe(ctx context.Context, from operator.View, key types.NamespacedName,
) (decide.Promoted, bool, error) {
	o := decide.Promoted{Pod: &corev1.Pod{}, Node: r.node}
	there, err := from.Get(ctx, key, o.Pod)
	if err != nil || !there || o.Pod.Labels[decide.LabelEligible] == "" {
		return o, there, err
	}
	o.Orders, o.Unread = workOrdersOf(ctx, from.Reader, r.node, key)
	return o, true, nil
}

func (r captures) reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	o, there, err := r.observe(ctx, operator.View{Reader: r.client}, req.NamespacedName)
	if err != nil || !there || o.Unread == nil && decide.NextCapture(o).Do == decide.None {
		return ctrl.Result{}, err
	}
	if o, there, err = r.observe(ctx, r.current, req.NamespacedName); err != nil || !there {
		return ctrl.Result{}, err
	}
	if o.Unread != nil {
		return ctrl.Result{}, o.Unread
	}
	if err := r.outdated(ctx); err != nil {
		return ctrl.Result{}, err
	}
	switch next := decide.NextCapture(o); next.Do {
	case decide.Demote:
		err = r.promote(ctx, next.Pod, false)
	case decide.Capture:
		if err = r.capture(ctx, next.Content); err == nil {
			return ctrl.Result{RequeueAfter: again}, nil // there may be another order of this pod
		}
	}
	switch {
	case apierrors.IsConflict(err):
		return ctrl.Result{RequeueAfter: again}, nil
	case errors.Is(err, errRefused): // its status says why
		return ctrl.Result{RequeueAfter: refusedAgain}, nil
	}
	return ctrl.Result{}, err
}

// capture carries out an order, and returns once its status is final or somebody else's. godwitd has one operation
// for each snapshot: what has begun is followed, and what has ended is told.
func (a *agent) capture(ctx context.Context, order *v1alpha1.VMSnapshotContent) error {
	snapshot := order.Spec.SnapshotRef.UID
	if !a.running.begin(snapshot) {
		return nil
	}
	defer a.running.end(snapshot)
	err := a.claims.with(ctx, order, func(ctx context.Context, mine claim) error {
		return a.underClaim(ctx, client.ObjectKeyFromObject(order), mine)
	})
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("capture for work order %s: %w", order.Name, err)
	}
	return nil
}

func (a *agent) underClaim(ctx context.Context, key types.NamespacedName, mine claim) error {
	order := &v1alpha1.VMSnapshotContent{}
	there, err := a.current.Get(ctx, key, order)
	if err != nil || !there || decide.Final(order) || order.DeletionTimestamp != nil {
		return err
	}
	if err := a.outdated(ctx); err != nil {
		return err
	}
	status, err := a.daemon.Checkpoint(ctx, request(order))
	if err != nil {
		return a.refused(ctx, order, err)
	}
	settled, err := (&moves.Patience{Met: true}).Settle(ctx, status, a.daemon.Status, nil)
	if err != nil {
		return a.lost(ctx, mine, status.GetOperation().GetId(), err)
	}
	held, err := mine.held(ctx)
	if err != nil {
		return err
	}
	next := decide.NextReport(settled.GetOperation(), held)
	if next.Do == decide.None {
		return errLost
	}
	return a.report(ctx, order, next, settled)
}

// report writes how a capture ended, unless the order has its end already.
func (a *agent) report(ctx context.Context, order *v1alpha1.VMSnapshotContent, next decide.Action,
	settled *nodev1.StatusResponse) error {
	for {
		if err := a.outdated(ctx); err != nil {
			return err
		}
		err := a.tell(ctx, order, next, settled.GetOperation(), settled.GetFigures().GetTotalBytes())
		if !apierrors.IsConflict(err) {
			return err
		}
		again := &v1alpha1.VMSnapshotContent{}
		there, err := a.current.Get(ctx, client.ObjectKeyFromObject(order), again)
		if err != nil || !there || again.UID != order.UID || decide.Final(again) {
			return err
		}
		order = again
	}
}

// lost ends a capture that is followed no more, for want of the claim. An agent that is stopped leaves it: the next
// one follows it.
func (a *agent) lost(ctx context.Context, mine claim, operation string, cause error) error {
	if mine.stopping() {
		return cause
	}
	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTimeout)
	defer cancel()
	found, err := a.found(bound, operation)
	if err != nil || found == nil {
		return errors.Join(cause, err)
	}
	if next := decide.NextReport(found, false); next.Do == decide.OrderAbort {
		_, err = a.daemon.Abort(bound, &nodev1.AbortRequest{Operation: next.Operation, Reason: errLost.Error()})
	}
	return errors.Join(cause, err)
}

// errRefused is of an order that is refused for something that may pass, as want of room.
var errRefused = errors.New("refused for now")

// refused says why an order was not taken, to those who can mend it. What has no answer says nothing, and so does what
// waits for another operation.
func (a *agent) refused(ctx context.Context, order *v1alpha1.VMSnapshotContent, err error) error {
	next := decide.Action{Do: decide.None, Waits: decide.ReasonRefused, Message: err.Error()}
	var held *record.HeldError
	switch {
	case hopeless(err):
		next.Do, next.Waits = decide.TellFailed, decide.ReasonCaptureFailed
		return a.tell(ctx, order, next, nil, 0)
	case errors.As(err, &held), !errdefs.IsResourceExhausted(err) && !errdefs.IsFailedPrecondition(err):
		return err
	}
	if err := a.tell(ctx, order, next, nil, 0); err != nil {
		return err
	}
	return fmt.Errorf("%w: %w", errRefused, err)
}

// hopeless reports whether an order is refused for what it is. What may pass is tried again.
func hopeless(err error) bool { return errdefs.IsInvalidArgument(err) || errdefs.IsNotImplemented(err) }

// request is made of the operator's word in the labels of the order. What a pod says of itself is not trusted. It has
// no generation: a boot that is tried again claims another one, and stays in its pod.
func request(c *v1alpha1.VMSnapshotContent) *nodev1.CheckpointRequest {
	return &nodev1.CheckpointRequest{
		Vm:        &nodev1.VM{Namespace: store.Kubernetes, Id: c.Spec.Source.PodRef.Namespace + "." + c.Labels[pods.LabelVM]},
		Operation: c.Spec.SnapshotRef.UID, Name: decide.OrderName(types.UID(c.Spec.SnapshotRef.UID)),
		Uid: c.Labels[pods.LabelRecordUID], Prefix: c.Spec.Repository,
	}
}
