package operator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/schema"
)

type operations struct {
	base
	outages *outages
}

func addOperation(mgr ctrl.Manager, b base) error {
	return ctrl.NewControllerManagedBy(mgr).Named("vmoperation").For(&v1alpha1.VMOperation{}).
		Watches(&v1alpha1.VMRecord{}, b.ordersOf(vmOfRecord)).
		Watches(&v1alpha1.VirtualMachine{}, b.ordersOf(func(o client.Object) []types.NamespacedName {
			return named(o.GetNamespace(), o.GetName())
		})).
		Watches(&v1alpha1.VMOperation{}, b.ordersOf(vmOfOrder)). // one that has ended lets the next one begin
		Complete(schema.Calm(operations{b, &outages{}}.reconcile))
}

func (b base) ordersOf(vmOf func(client.Object) []types.NamespacedName) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) (all []ctrl.Request) {
		for _, vm := range vmOf(o) {
			orders, err := b.cached.Orders(ctx, vm.Namespace, vm.Name)
			if err != nil {
				continue // the cache of orders is not there yet: it tells of each one when it is
			}
			for i := range orders {
				all = append(all, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&orders[i])})
			}
		}
		return all
	})
}

func (r operations) reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	o, there, err := r.cached.Operation(ctx, req.NamespacedName)
	if err != nil {
		return ctrl.Result{}, err
	}
	next, now := decide.NextOperation(o), metav1.Now().Rfc3339Copy()
	if !there || next.Do != decide.Order {
		r.outages.over(req.NamespacedName)
	}
	if !there || next.Do == decide.None && equality.Semantic.DeepEqual(decide.OperationStatus(o, next, now),
		o.Object.Status) {
		return ctrl.Result{RequeueAfter: next.After}, nil
	}
	if left := r.outages.left(o, time.Now()); next.Do == decide.Order && left > 0 {
		return ctrl.Result{RequeueAfter: left}, nil
	}
	if o, there, err = r.current.Operation(ctx, req.NamespacedName); err != nil || !there {
		return ctrl.Result{}, err
	}
	if wait, outdated := r.outdated(ctx, ofOperations, ofVMs, ofRecords); outdated {
		return wait, nil
	}
	next = decide.NextOperation(o)
	if next.Do != decide.Order || o.Object.Status.Phase == "" { // else it says why it has waited until now
		if err := r.tell(ctx, o, next, now); err != nil {
			return result(next, ignoreAbsent(err))
		}
	}
	if o.Unread != nil {
		return ctrl.Result{}, o.Unread
	}
	err = r.do(ctx, o, next)
	if next.Do != decide.Order {
		return result(next, err)
	}
	next, err = r.outcome(o, next, err)
	if err == nil && next.Do == decide.None {
		err = ignoreAbsent(r.tell(ctx, o, next, now))
	}
	return result(next, err)
}

// outcome is what comes of an order that was given, by the error that was answered.
func (r operations) outcome(o decide.Operation, next decide.Action, err error) (decide.Action, error) {
	switch {
	case errors.Is(err, ErrTurn):
		next.After = again
		return next, nil
	case busy(err) != "" && busy(err) == o.Record.GetOperation().GetId(): // its end is told
		return decide.Action{Do: decide.None, Waits: decide.ReasonOperation, Message: err.Error(), After: again}, nil
	case errdefs.IsUnavailable(err), errdefs.IsResourceExhausted(err), busy(err) != "": // it may pass
		return decide.Action{Do: decide.None, Waits: decide.ReasonOperation, Message: err.Error(),
			After: r.outages.failed(o, time.Now())}, nil
	case refused(err):
		next = decide.Action{Do: decide.None, Refused: true, Waits: decide.ReasonRefused, Message: err.Error()}
		err = nil
	}
	r.outages.over(client.ObjectKeyFromObject(o.Object))
	return next, err
}

func (r operations) tell(ctx context.Context, o decide.Operation, next decide.Action, now metav1.Time) error {
	status := decide.OperationStatus(o, next, now)
	if equality.Semantic.DeepEqual(status, o.Object.Status) {
		return nil
	}
	ends := o.Object.Status.Phase != status.Phase
	o.Object.Status = status
	if err := r.client.Status().Update(ctx, o.Object, schema.Strict); err != nil {
		return err
	}
	kind := string(o.Object.Spec.Kind)
	switch {
	case o.VM == nil || !ends:
	case status.Phase == v1alpha1.MigrationFailed:
		r.events.Eventf(o.VM, o.Object, corev1.EventTypeWarning, eventOfFailure(o.Object.Spec.Kind), kind, "%s",
			noteOf(status.Reason))
	case status.Phase == v1alpha1.MigrationSucceeded:
		r.events.Eventf(o.VM, o.Object, corev1.EventTypeNormal, kind+"Succeeded", kind, "%s", o.Object.Name)
	}
	return nil
}

// noteOf is as much of a text as the note of an event may have.
func noteOf(text string) string {
	const most = 1000
	return strings.ToValidUTF8(text[:min(most, len(text))], "")
}

// busy is the operation of somebody else that holds the VM, by the word of its node; empty: none does. It ends, and
// that is told of one that the record has.
func busy(err error) string {
	var held *record.HeldError
	if !errors.As(err, &held) {
		return ""
	}
	return held.Record.GetOperation().GetId()
}

// refused reports whether an engine will not take an order.
func refused(err error) bool {
	return errdefs.IsFailedPrecondition(err) || errdefs.IsInvalidArgument(err) || errdefs.IsNotFound(err) ||
		errdefs.IsNotImplemented(err) || errdefs.IsPermissionDenied(err) || errdefs.IsAlreadyExists(err)
}

func (r operations) do(ctx context.Context, o decide.Operation, next decide.Action) error {
	vm := vmOf(o.Object.Namespace + "." + o.Object.Spec.VMRef.Name)
	switch next.Do {
	case decide.None:
		return nil
	case decide.DeleteOperation:
		return ignoreAbsent(r.client.Delete(ctx, o.Object, client.Preconditions{UID: &o.Object.UID}))
	case decide.Order:
		if r.engine != nil {
			return r.engine.Order(ctx, Order{Record: o.Record, Kind: kinds[next.Kind], ID: next.Operation, Node: next.Node,
				Policy: o.Object.Spec.MigrationPolicy})
		}
	case decide.OrderAbort:
		if r.engine != nil {
			return r.engine.Abort(ctx, vm, next.Operation)
		}
	}
	return fmt.Errorf("%s of order %s/%s: %w", next.Do, o.Object.Namespace, o.Object.Name, errdefs.ErrNotImplemented)
}
