package operator

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/schema"
)

type sets struct{ base }

func addSet(mgr ctrl.Manager, b base) error {
	return ctrl.NewControllerManagedBy(mgr).Named("virtualmachineset").For(&v1alpha1.VirtualMachineSet{}).
		Owns(&v1alpha1.VirtualMachine{}).
		Watches(&v1alpha1.VMRecord{}, b.setOf(vmOfRecord)).
		Watches(&v1alpha1.VMOperation{}, b.setOf(vmOfOrder)).
		Complete(schema.Calm(sets{b}.reconcile))
}

// setOf enqueues the set of the VM that an object is about. A VM that is gone is told of by itself.
func (b base) setOf(vmOf func(client.Object) []types.NamespacedName) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) (all []ctrl.Request) {
		for _, name := range vmOf(o) {
			vm := &v1alpha1.VirtualMachine{}
			if there, err := b.cached.Get(ctx, name, vm); err != nil || !there {
				continue
			}
			for _, owner := range vm.OwnerReferences {
				if owner.Kind == "VirtualMachineSet" {
					all = append(all, ctrl.Request{NamespacedName: types.NamespacedName{Namespace: name.Namespace, Name: owner.Name}})
				}
			}
		}
		return all
	})
}

func (r sets) reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	o, there, err := r.cached.Set(ctx, req.NamespacedName)
	if err != nil || !there {
		return ctrl.Result{}, err
	}
	next := decide.NextSet(o)
	if next.Do == decide.None && equality.Semantic.DeepEqual(decide.SetStatus(o, next), o.Object.Status) {
		return ctrl.Result{RequeueAfter: next.After}, nil
	}
	if o, there, err = r.current.Set(ctx, req.NamespacedName); err != nil || !there {
		return ctrl.Result{}, err
	}
	if wait, outdated := r.outdated(ctx, ofSets, ofVMs, ofOperations); outdated {
		return wait, nil
	}
	next = decide.NextSet(o)
	if status := decide.SetStatus(o, next); !equality.Semantic.DeepEqual(status, o.Object.Status) {
		o.Object.Status = status
		if err := r.tell(ctx, o.Object, next); err != nil {
			return result(next, ignoreAbsent(err))
		}
	}
	if o.Unread != nil {
		return ctrl.Result{}, o.Unread
	}
	return result(next, r.do(ctx, o, next))
}

func (r sets) do(ctx context.Context, o decide.Set, next decide.Action) error {
	switch next.Do {
	case decide.None:
		return nil
	case decide.MakeVM:
		return r.client.Create(ctx, next.VM, schema.Strict)
	case decide.UpdateVM:
		return r.client.Update(ctx, next.VM, schema.Strict) // with the version that was seen
	case decide.DeleteVM:
		return ignoreAbsent(r.client.Delete(ctx, next.VM, client.Preconditions{UID: &next.VM.UID}))
	case decide.MakeOperation:
		return r.client.Create(ctx, order(next.VM, next, nil, o.Object.Generation), schema.Strict)
	}
	return fmt.Errorf("%s of set %s/%s: %w", next.Do, o.Object.Namespace, o.Object.Name, errdefs.ErrNotImplemented)
}
