package operator

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/pods"
	"godwit.dev/godwit/migrate/kubernetes/schema"
)

type vms struct{ base }

func addVM(mgr ctrl.Manager, b base) error {
	return ctrl.NewControllerManagedBy(mgr).Named("virtualmachine").For(&v1alpha1.VirtualMachine{}).
		Watches(&corev1.Pod{}, each(func(o client.Object) []types.NamespacedName {
			return named(o.GetNamespace(), o.GetLabels()[pods.LabelVM])
		})).
		Watches(&v1alpha1.VMRecord{}, each(vmOfRecord)).
		Watches(&v1alpha1.VMOperation{}, each(vmOfOrder)).
		Watches(&v1alpha1.VirtualMachineSet{}, each(func(o client.Object) (all []types.NamespacedName) {
			set, ok := o.(*v1alpha1.VirtualMachineSet)
			for i := 0; ok && i < len(set.Spec.Members); i++ {
				all = append(all, named(set.Namespace, pods.MemberVM(set, set.Spec.Members[i].Name))...)
			}
			return all
		})).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(b.about), builder.WithPredicates(changedNode)).
		Complete(schema.Calm(vms{b}.reconcile))
}

// changedNode leaves away what a kubelet says of its node again and again.
var changedNode = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	before, ok := e.ObjectOld.(*corev1.Node)
	now, also := e.ObjectNew.(*corev1.Node)
	return ok && also && (vouched(now) || vouched(before) || before.Spec.Unschedulable != now.Spec.Unschedulable)
}}

// about are the VMs that a node says something of: those that it may have in hand, and those that are wanted on it.
// What has an operation may be anywhere.
func (b base) about(ctx context.Context, o client.Object) (all []ctrl.Request) {
	node, ok := o.(*corev1.Node)
	if !ok {
		return nil
	}
	list := &v1alpha1.VirtualMachineList{}
	if err := b.client.List(ctx, list); err != nil {
		return nil // from the cache: a kind that is not there yet tells of each object anyway
	}
	for _, vm := range list.Items {
		has := vm.Status.Owner.Node == node.Name || vm.Status.Operation != nil
		if has || vouched(node) && matters(&vm) || vm.Spec.NodeName == node.Name {
			all = append(all, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&vm)})
		}
	}
	return all
}

// matters reports whether a VM is taken from its node when somebody vouches for that: its status may say nothing yet.
func matters(vm *v1alpha1.VirtualMachine) bool {
	return vm.Spec.OnNodeLoss == v1alpha1.NodeLossRestore || vm.DeletionTimestamp != nil
}

// each enqueues the objects that another one is about.
func each(of func(client.Object) []types.NamespacedName) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) (all []ctrl.Request) {
		for _, name := range of(o) {
			all = append(all, ctrl.Request{NamespacedName: name})
		}
		return all
	})
}

func named(namespace, name string) []types.NamespacedName {
	if name == "" {
		return nil
	}
	return []types.NamespacedName{{Namespace: namespace, Name: name}}
}

func vmOfRecord(o client.Object) []types.NamespacedName {
	if pods.IsSandboxRecord(o.GetName()) {
		return nil
	}
	namespace, name, _ := strings.Cut(o.GetName(), ".")
	return named(namespace, name)
}

func vmOfOrder(o client.Object) []types.NamespacedName {
	if op, ok := o.(*v1alpha1.VMOperation); ok {
		return named(op.Namespace, op.Spec.VMRef.Name)
	}
	return nil
}

// reconcile looks at the cache first. If it says that nothing is to be done, nothing is asked. Else all is read anew,
// and decided anew: a cache proves nothing.
func (r vms) reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	o, there, err := r.cached.VM(ctx, req.NamespacedName)
	if err != nil || !there {
		return ctrl.Result{}, err
	}
	next := decide.NextVM(o)
	if next.Do == decide.None && equality.Semantic.DeepEqual(decide.VMStatus(o, next), o.Object.Status) {
		return ctrl.Result{RequeueAfter: next.After}, nil
	}
	if o, there, err = r.current.VM(ctx, req.NamespacedName); err != nil || !there {
		return ctrl.Result{}, err
	}
	if wait, outdated := r.outdated(ctx, resourcesOf(o)...); outdated {
		return wait, nil
	}
	next = decide.NextVM(o)
	if status := decide.VMStatus(o, next); !equality.Semantic.DeepEqual(status, o.Object.Status) {
		said := o.Object.DeepCopy()
		said.Status = status
		if err := r.tell(ctx, said, next); err != nil {
			return result(next, ignoreAbsent(err))
		}
		if why := decide.Unplaced(o.Object.Status, status); why != "" {
			r.events.Eventf(said, nil, corev1.EventTypeWarning, string(decide.ReasonUnschedulable), "Place", "%s", why)
		}
		o.Object.ResourceVersion = said.ResourceVersion
	}
	if o.Unread != nil {
		return ctrl.Result{}, o.Unread
	}
	return result(next, r.apply(ctx, o, next))
}
