package nodeagent

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/operator"
	"godwit.dev/godwit/migrate/kubernetes/schema"
	"godwit.dev/godwit/migrate/kubernetes/store"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// workOrders checks work orders, and promotes their pods. It begins no capture.
type workOrders struct{ *agent }

func addWorkOrders(mgr ctrl.Manager, a *agent) error {
	return ctrl.NewControllerManagedBy(mgr).Named("vmsnapshotcontent").For(&v1alpha1.VMSnapshotContent{}).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(a.workOrdersOfPod)).
		WithOptions(controller.Options{MaxConcurrentReconciles: atOnce}).
		Complete(schema.Calm(workOrders{a}.reconcile))
}

// workOrdersOfPod enqueues the work orders of this node that name a pod.
func (a *agent) workOrdersOfPod(ctx context.Context, pod client.Object) (all []ctrl.Request) {
	list, err := workOrdersOf(ctx, a.client, a.node, client.ObjectKeyFromObject(pod))
	if err != nil {
		return nil // from the cache: orders that are not there yet tell of themselves
	}
	for i := range list {
		all = append(all, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&list[i])})
	}
	return all
}

// workOrdersOf are the work orders of this node that name a pod.
func workOrdersOf(ctx context.Context, from client.Reader, node string, pod types.NamespacedName,
) (all []v1alpha1.VMSnapshotContent, err error) {
	list := &v1alpha1.VMSnapshotContentList{}
	if err := from.List(ctx, list, client.MatchingLabels{decide.LabelNode: decide.NodeLabel(node)}); err != nil {
		return nil, fmt.Errorf("list work orders of node %s: %w", node, err)
	}
	for _, c := range list.Items {
		if decide.PodOf(&c) == pod {
			all = append(all, c)
		}
	}
	return all, nil
}

// observe reads an order and its pod; false: there is no such order.
func (r workOrders) observe(ctx context.Context, from operator.View, key types.NamespacedName,
) (decide.Content, bool, error) {
	o := decide.Content{Object: &v1alpha1.VMSnapshotContent{}, Node: r.node}
	there, err := from.Get(ctx, key, o.Object)
	if err != nil || !there || decide.Final(o.Object) || o.Object.Spec.Source.NodeName != r.node {
		return o, there, err
	}
	o.Running = r.running.has(o.Object.Spec.SnapshotRef.UID)
	pod := &corev1.Pod{}
	if there, o.Unread = from.Get(ctx, decide.PodOf(o.Object), pod); there {
		o.Pod = pod
	}
	if o.Unread == nil {
		o.Found, o.Unread = r.found(ctx, o.Object.Spec.SnapshotRef.UID)
	}
	return o, true, nil
}

// found is the operation of a snapshot; nil: the records know none.
func (a *agent) found(ctx context.Context, snapshot string) (*nodev1.Operation, error) {
	status, err := a.daemon.Status(ctx, &nodev1.StatusRequest{Operation: snapshot})
	if errdefs.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for operation %s: %w", snapshot, err)
	}
	return status.GetOperation(), nil
}

// reconcile looks at the cache first, as the operator does. What it writes is decided by what was read anew.
func (r workOrders) reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	o, there, err := r.observe(ctx, operator.View{Reader: r.client}, req.NamespacedName)
	if err != nil || !there {
		return ctrl.Result{}, err
	}
	if next := decide.NextContent(o); o.Unread == nil && next.Do == decide.None && !tells(o.Object, next) {
		return ctrl.Result{}, nil
	}
	if o, there, err = r.observe(ctx, r.current, req.NamespacedName); err != nil || !there {
		return ctrl.Result{}, err
	}
	if err := r.outdated(ctx); err != nil {
		return ctrl.Result{}, err
	}
	next := decide.NextContent(o)
	if o.Unread != nil {
		return ctrl.Result{}, o.Unread
	}
	err = r.do(ctx, o, next)
	if apierrors.IsConflict(err) {
		return ctrl.Result{RequeueAfter: again}, nil
	}
	return ctrl.Result{}, err
}

// tells reports whether the status says something else once next is known.
func tells(c *v1alpha1.VMSnapshotContent, next decide.Action) bool {
	return !equality.Semantic.DeepEqual(c.Status, decide.ContentStatus(c.Status, c.Generation, next, nil, 0))
}

func (r workOrders) do(ctx context.Context, o decide.Content, next decide.Action) error {
	switch next.Do {
	case decide.None, decide.TellFailed:
		return r.tell(ctx, o.Object, next, nil, 0)
	case decide.Promote:
		return r.promote(ctx, next.Pod, true)
	case decide.Capture:
		return r.capture(ctx, next.Content)
	case decide.OrderAbort:
		_, err := r.daemon.Abort(ctx, &nodev1.AbortRequest{Operation: next.Operation, Reason: "its work order is deleted"})
		return err
	}
	return fmt.Errorf("%s of work order %s: %w", next.Do, o.Object.Name, errdefs.ErrNotImplemented)
}

// tell writes the status of an order as it was read. One that was written meanwhile is a conflict: Ready and Failed are
// never overwritten.
func (a *agent) tell(ctx context.Context, c *v1alpha1.VMSnapshotContent, next decide.Action, found *nodev1.Operation,
	bytes uint64) error {
	status := decide.ContentStatus(c.Status, c.Generation, next, found, bytes)
	if equality.Semantic.DeepEqual(status, c.Status) {
		return nil
	}
	c.Status = status
	err := a.client.Status().Update(ctx, c, schema.Strict)
	if store.IsAbsent(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("write status of work order %s: %w", c.Name, err)
	}
	return nil
}

// promote sets the label of a pod, or takes it back. It changes nothing else.
func (a *agent) promote(ctx context.Context, pod *corev1.Pod, eligible bool) error {
	was := client.MergeFromWithOptions(pod.DeepCopy(), client.MergeFromWithOptimisticLock{})
	if eligible {
		pod.Labels[decide.LabelEligible] = "true"
	} else {
		delete(pod.Labels, decide.LabelEligible)
	}
	err := a.client.Patch(ctx, pod, was)
	if store.IsAbsent(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("label pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}
