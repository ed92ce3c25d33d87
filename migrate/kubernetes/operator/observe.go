package operator

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/authority"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/pods"
	"godwit.dev/godwit/migrate/kubernetes/schema"
	"godwit.dev/godwit/migrate/kubernetes/store"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// View reads from a cache, or from the API server itself.
type View struct {
	client.Reader
	Secrets client.Reader // reads from the API server itself; nil: no Secret is looked at

	Schemas *schema.Guard // of what reads from the API server; nil: schemas are not looked at

	decoded *decoded // nil: each record is decoded anew

	Engine, OnStop bool
	Ask            []pods.AddressAnnotation
	// Machine answers which machine the records mean by a node's name; without a uid: it is not known.
	Machine func(ctx context.Context, node string) (store.Machine, error)
}

// Get reads an object. It answers false only where there is none.
func (v View) Get(ctx context.Context, key types.NamespacedName, o client.Object) (bool, error) {
	err := v.Reader.Get(ctx, key, o)
	if store.IsAbsent(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read %T %s: %w", o, key, err)
	}
	if v.Schemas != nil {
		err = v.whole(ctx, o)
	}
	return true, err
}

// Record reads what the records have of a VM; nil: nothing.
func (v View) Record(ctx context.Context, namespace, vm string) (*nodev1.Record, []*nodev1.Operation, error) {
	o := &v1alpha1.VMRecord{}
	there, err := v.Get(ctx, types.NamespacedName{Name: namespace + "." + vm}, o)
	if err != nil || !there {
		return nil, nil, err
	}
	return store.Record(o)
}

// Orders reads the orders of a VM.
func (v View) Orders(ctx context.Context, namespace string, vms ...string) ([]v1alpha1.VMOperation, error) {
	all := &v1alpha1.VMOperationList{}
	if err := v.List(ctx, all, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("list orders of namespace %s: %w", namespace, err)
	}
	return slices.DeleteFunc(all.Items, func(op v1alpha1.VMOperation) bool {
		return !slices.Contains(vms, op.Spec.VMRef.Name)
	}), nil
}

// VM observes a VirtualMachine; false: there is none.
func (v View) VM(ctx context.Context, key types.NamespacedName) (decide.VM, bool, error) {
	o := decide.VM{Object: &v1alpha1.VirtualMachine{}, Engine: v.Engine, OnStop: v.OnStop, Ask: v.Ask, Now: time.Now()}
	there, err := v.Get(ctx, key, o.Object)
	if err != nil || !there {
		return o, there, err
	}
	if o.Unread = v.fill(ctx, &o); o.Unread == nil && o.Fenced {
		return v.wishedAfter(ctx, o)
	}
	return o, true, nil
}

// wishedAfter reads the VirtualMachine anew: its policy may have changed before somebody vouched for the node. What is
// read before a proof is no answer to it.
func (v View) wishedAfter(ctx context.Context, o decide.VM) (decide.VM, bool, error) {
	now := &v1alpha1.VirtualMachine{}
	there, err := v.Get(ctx, client.ObjectKeyFromObject(o.Object), now)
	if err != nil || !there {
		return o, there, err
	}
	if now.UID != o.Object.UID {
		return o, true, fmt.Errorf("read VM %s/%s: it was made anew meanwhile: %w", now.Namespace, now.Name,
			errdefs.ErrConflict)
	}
	o.Object = now
	return o, true, nil
}

// fill reads the pods before the record. A pod is made of an operation that is open: so the record knows it.
func (v View) fill(ctx context.Context, o *decide.VM) (err error) {
	vm := o.Object
	list := &corev1.PodList{}
	if err := v.List(ctx, list, client.InNamespace(vm.Namespace),
		client.MatchingLabels{pods.LabelVM: vm.Name}); err != nil {
		return fmt.Errorf("list pods of VM %s/%s: %w", vm.Namespace, vm.Name, err)
	}
	o.Pods = list.Items
	rec := &v1alpha1.VMRecord{}
	there, err := v.Get(ctx, types.NamespacedName{Name: pods.RecordID(vm)}, rec)
	if err != nil {
		return err
	}
	if there {
		if o.Record, o.Closed, err = store.Record(rec); err != nil {
			return err
		}
		noted, err := hasRan(rec, o.Record)
		if err != nil {
			return err
		}
		o.Images, o.Addresses, o.AddressesOf, o.Template = noted.Images, noted.Addresses, noted.Of, noted.Template
	}
	if o.Record == nil && vm.DeletionTimestamp == nil { // a record that is there says where its snapshots go
		o.Class, err = v.Class(ctx, vm.Namespace, "spec.snapshotClassName", vm.Spec.SnapshotClassName, true)
		if err != nil {
			return err
		}
	}
	if _, err := pods.IntentOf(o.Record); err == nil { // its next pod may be made
		if o.Grace, err = v.Grace(ctx, vm.Namespace, o.Record); err != nil {
			return err
		}
	}
	if err := v.beginsFrom(ctx, o); err != nil {
		return err
	}
	if o.Orders, err = v.Orders(ctx, vm.Namespace, vm.Name); err != nil {
		return err
	}
	o.Running = running(o)
	if err := v.ofNodes(ctx, o); err != nil {
		return err
	}
	return v.ofSet(ctx, o)
}

// ofNodes observes the node that has a VM, and the one that it is wanted on. A Node that was deleted proves nothing.
func (v View) ofNodes(ctx context.Context, o *decide.VM) error {
	vm, owner := o.Object, o.Record.GetOwner().GetNode()
	var err error
	if o.Fenced, err = v.fenced(ctx, o.Record); err != nil {
		return err
	}
	if k := transition.Kept(o.Record); k != nil && o.Fenced {
		if o.NoSource, err = v.NodeFenced(ctx, k.GetNode()); err != nil {
			return err
		}
	}
	if owner == "" {
		return nil
	}
	n := &corev1.Node{}
	if wish := vm.Spec.NodeName; wish != "" && wish != owner {
		there, err := v.Get(ctx, types.NamespacedName{Name: wish}, n)
		if err != nil {
			return err
		}
		o.Cordoned = there && n.Spec.Unschedulable
	}
	return nil
}

// fenced reads whether somebody vouches that the node which has a VM in hand runs nothing any more.
func (v View) fenced(ctx context.Context, rec *nodev1.Record) (bool, error) {
	node := decide.InHand(rec)
	if node == "" {
		return false, nil
	}
	return v.NodeFenced(ctx, node)
}

// NodeFenced reads whether somebody vouches that the machine which the records mean by a node runs nothing any more. A
// Node that was deleted proves nothing. The taints of a Node are of its own machine. Of the one that had the name
// before, its label says whether that runs nothing.
func (v View) NodeFenced(ctx context.Context, name string) (bool, error) {
	n := &corev1.Node{}
	there, err := v.Get(ctx, types.NamespacedName{Name: name}, n)
	if err != nil || !there || !vouched(n) || v.Machine == nil {
		return err == nil && there && tainted(n), err
	}
	noted, err := v.Machine(ctx, name)
	switch {
	case err != nil:
		return false, err
	case noted.UID == "" || noted.Is(store.MachineOf(n)):
		return tainted(n), nil
	}
	return n.Labels[authority.LabelReplaces] == noted.UID, nil
}

// vouched reports whether a Node says of some machine that it runs nothing any more.
func vouched(node *corev1.Node) bool {
	return tainted(node) || node.Labels[authority.LabelReplaces] != ""
}

func tainted(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == corev1.TaintNodeOutOfService || t.Key == "godwit.dev/fenced"
	})
}

// Operation observes a VMOperation; false: there is none.
func (v View) Operation(ctx context.Context, key types.NamespacedName) (decide.Operation, bool, error) {
	o := decide.Operation{Object: &v1alpha1.VMOperation{}, Engine: v.Engine, Now: time.Now()}
	there, err := v.Get(ctx, key, o.Object)
	if err != nil || !there {
		return o, there, err
	}
	o.Unread = v.operation(ctx, &o)
	return o, true, nil
}

func (v View) operation(ctx context.Context, o *decide.Operation) error {
	vm, name := &v1alpha1.VirtualMachine{}, o.Object.Spec.VMRef.Name
	there, err := v.Get(ctx, types.NamespacedName{Namespace: o.Object.Namespace, Name: name}, vm)
	if err != nil {
		return err
	}
	if there {
		o.VM = vm
	}
	rec, closed, err := v.Record(ctx, o.Object.Namespace, name)
	if err != nil {
		return err
	}
	o.Record = rec
	if o.Set, err = v.SetFor(ctx, o.VM, rec); err != nil {
		return err
	}
	if o.Fenced, err = v.fenced(ctx, rec); err != nil {
		return err
	}
	for _, op := range append(closed, rec.GetOperation()) {
		if op.GetId() == string(o.Object.UID) {
			o.Found = op
		}
	}
	list := &corev1.PodList{}
	if err := v.List(ctx, list, client.InNamespace(o.Object.Namespace),
		client.MatchingLabels{pods.LabelOperation: string(o.Object.UID)}); err != nil {
		return fmt.Errorf("list pods of order %s: %w", o.Object.Name, err)
	}
	for i := range list.Items {
		if pods.Attempt(&list.Items[i]) == o.Found.GetAttempt() {
			o.Pod = &list.Items[i]
		}
	}
	o.Orders, err = v.Orders(ctx, o.Object.Namespace, name)
	return err
}

// beginsFrom observes the snapshot that a VM is to begin from, if it has not yet.
func (v View) beginsFrom(ctx context.Context, o *decide.VM) error {
	vm, from := o.Object, o.Object.Spec.RestoreFrom
	if from == nil || vm.DeletionTimestamp != nil || o.Record != nil && !record.Begins(o.Record) {
		return nil
	}
	snap, there, err := v.Snapshot(ctx, types.NamespacedName{Namespace: vm.Namespace, Name: from.Name})
	if err != nil || !there {
		return err
	}
	o.From = &snap
	return snap.Unread
}
