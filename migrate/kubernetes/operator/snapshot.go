package operator

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	coordination "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/pods"
	"godwit.dev/godwit/migrate/kubernetes/schema"
	"godwit.dev/godwit/migrate/kubernetes/store"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// snapshots makes a work order of each VMSnapshot, and says what became of it.
type snapshots struct {
	base
	namespace string // of the nodes' claims
}

func addSnapshot(namespace string) func(ctrl.Manager, base) error {
	return func(mgr ctrl.Manager, b base) error {
		r := snapshots{b, namespace}
		watch := func(name string, do reconcile.Func) error {
			return ctrl.NewControllerManagedBy(mgr).Named(name).For(&v1alpha1.VMSnapshot{}).
				Watches(&v1alpha1.VMSnapshotContent{}, each(snapshotOf)).
				Watches(&v1alpha1.VMRecord{}, b.snapshotsOf(vmOfRecord)).
				Watches(&v1alpha1.VirtualMachine{}, b.snapshotsOf(func(o client.Object) []types.NamespacedName {
					return named(o.GetNamespace(), o.GetName())
				})).
				Watches(&corev1.Pod{}, b.snapshotsOf(func(o client.Object) []types.NamespacedName {
					return named(o.GetNamespace(), o.GetLabels()[pods.LabelVM])
				})).
				Complete(schema.Calm(do))
		}
		if err := watch("vmsnapshot", r.reconcile); err != nil || b.engine == nil {
			return err
		}
		return watch("vmsnapshot-tell", r.tell)
	}
}

// snapshotOf is the VMSnapshot of a work order, also of one that has gone: the order itself names it.
func snapshotOf(o client.Object) []types.NamespacedName {
	if c, ok := o.(*v1alpha1.VMSnapshotContent); ok {
		return []types.NamespacedName{decide.SnapshotOf(c)}
	}
	return nil
}

// snapshotsOf enqueues the snapshots that may be of a VM.
func (b base) snapshotsOf(vmOf func(client.Object) []types.NamespacedName) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) (all []ctrl.Request) {
		for _, vm := range vmOf(o) {
			list := &v1alpha1.VMSnapshotList{}
			if err := b.client.List(ctx, list, client.InNamespace(vm.Namespace)); err != nil {
				return nil // from the cache: a kind that is not there yet tells of each object anyway
			}
			for i := range list.Items {
				if from := list.Items[i].Spec.Source.VMRef; from == nil || from.Name == vm.Name {
					all = append(all, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
				}
			}
		}
		return all
	})
}

// Snapshot observes a VMSnapshot; false: there is none.
func (v View) Snapshot(ctx context.Context, key types.NamespacedName) (decide.Snapshot, bool, error) {
	o := decide.Snapshot{Object: &v1alpha1.VMSnapshot{}, Engine: v.Engine}
	there, err := v.Get(ctx, key, o.Object)
	if err != nil || !there {
		return o, there, err
	}
	o.Unread = v.snapshot(ctx, &o)
	return o, true, nil
}

func (v View) snapshot(ctx context.Context, o *decide.Snapshot) error {
	snap, from := o.Object, o.Object.Spec.Source
	content := &v1alpha1.VMSnapshotContent{}
	there, err := v.Get(ctx, types.NamespacedName{Name: decide.OrderName(snap.UID)}, content)
	if err != nil {
		return err
	}
	vm := ""
	if there {
		o.Named = content
		if content.Spec.SnapshotRef.UID == string(snap.UID) {
			vm = content.Labels[pods.LabelVM]
		}
	}
	list := &v1alpha1.VMSnapshotContentList{}
	if err := v.List(ctx, list, client.MatchingLabels{decide.LabelSnapshotUID: string(snap.UID)}); err != nil {
		return fmt.Errorf("list work orders of VMSnapshot %s/%s: %w", snap.Namespace, snap.Name, err)
	}
	o.Labelled = list.Items
	if !there && len(list.Items) == 0 { // what is ordered is ordered, whatever becomes of the class
		if o.Class, err = v.Class(ctx, snap.Namespace, "spec.className", snap.Spec.ClassName, false); err != nil {
			return err
		}
	}
	if from.PodRef != nil {
		if o.Pod, err = v.pod(ctx, types.NamespacedName{Namespace: snap.Namespace, Name: from.PodRef.Name}); err != nil {
			return err
		}
		if vm == "" && o.Pod != nil {
			vm = o.Pod.Labels[pods.LabelVM]
		}
		vm = cmp.Or(vm, snap.Status.VMName)
	} else {
		vm = from.VMRef.Name
	}
	if vm == "" {
		return nil
	}
	if err := v.holds(ctx, o, vm); err != nil || from.VMRef == nil {
		return err
	}
	return v.sourceVM(ctx, o, vm)
}

// holds observes what the records have of a snapshot: the VM that it was taken of lists it, or it is held. Then it also
// observes the VM that has begun from it. What is held is read before that, and a change of it is refused later.
func (v View) holds(ctx context.Context, o *decide.Snapshot, vm string) error {
	rec, owed, err := v.listed(ctx, o.Object.Namespace, vm)
	if err != nil {
		return err
	}
	o.Record = rec
	o.Held = store.Held(owed, string(o.Object.UID))
	by := o.Held.GetHold()
	if by.GetVm() == nil {
		return nil
	}
	taker := &v1alpha1.VMRecord{}
	there, err := v.Get(ctx, types.NamespacedName{Name: by.GetVm().GetId()}, taker)
	if err != nil {
		return err
	}
	if there {
		found, _, err := store.Record(taker)
		if err != nil {
			return err
		}
		if transition.Marked(o.Held, found) {
			o.Taker, o.TakerThere = found, true
			return nil
		}
	}
	is, name := &v1alpha1.VirtualMachine{}, strings.TrimPrefix(by.GetVm().GetId(), o.Object.Namespace+".")
	there, err = v.Get(ctx, types.NamespacedName{Namespace: o.Object.Namespace, Name: name}, is)
	o.TakerThere = there && pods.Claims(is, by.GetUid()) // its record may be put back
	return err
}

// sourceVM observes the VM that a snapshot names, and the pod that it runs in.
func (v View) sourceVM(ctx context.Context, o *decide.Snapshot, name string) error {
	vm := &v1alpha1.VirtualMachine{}
	there, err := v.Get(ctx, types.NamespacedName{Namespace: o.Object.Namespace, Name: name}, vm)
	if err != nil || !there {
		return err
	}
	o.VM = vm
	list := &corev1.PodList{}
	if err := v.List(ctx, list, client.InNamespace(vm.Namespace), client.MatchingLabels{pods.LabelVM: name}); err != nil {
		return fmt.Errorf("list pods of VM %s/%s: %w", vm.Namespace, name, err)
	}
	has, err := v.Has(ctx, vm, o.Record)
	if err != nil {
		return err
	}
	for i := range list.Items {
		if has && pods.Names(o.Record, &list.Items[i]) {
			o.Pod = &list.Items[i]
		}
	}
	return nil
}

func (v View) pod(ctx context.Context, key types.NamespacedName) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	there, err := v.Get(ctx, key, pod)
	if err != nil || !there {
		return nil, err
	}
	return pod, nil
}

func (r snapshots) reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	o, there, err := r.cached.Snapshot(ctx, req.NamespacedName)
	if err != nil || !there {
		return ctrl.Result{}, err
	}
	next := decide.NextSnapshot(o)
	if (next.Do == decide.None || next.Do == decide.TellWorkload) && o.Object.DeletionTimestamp == nil &&
		equality.Semantic.DeepEqual(decide.SnapshotStatus(o, next), o.Object.Status) {
		return ctrl.Result{RequeueAfter: next.After}, nil
	}
	if o, there, err = r.current.Snapshot(ctx, req.NamespacedName); err != nil || !there {
		return ctrl.Result{}, err
	}
	if wait, outdated := r.outdated(ctx, ofSnapshots, ofContents, ofVMs); outdated {
		return wait, nil
	}
	if o.Unread == nil {
		o.Claimed, o.Unread = r.claimed(ctx, o)
	}
	next = decide.NextSnapshot(o)
	if status := decide.SnapshotStatus(o, next); !equality.Semantic.DeepEqual(status, o.Object.Status) {
		said := o.Object.DeepCopy()
		said.Status = status
		if err := r.say(ctx, o.Object, said, next); err != nil {
			return result(next, ignoreAbsent(err))
		}
		o.Object.ResourceVersion = said.ResourceVersion
	}
	if o.Unread != nil {
		return ctrl.Result{}, o.Unread
	}
	return result(next, r.do(ctx, o, next))
}

// claimed reports whether a node may be about to capture. It matters only to what is being deleted.
func (r snapshots) claimed(ctx context.Context, o decide.Snapshot) (bool, error) {
	if o.Object.DeletionTimestamp == nil && (o.Named == nil || o.Named.DeletionTimestamp == nil) {
		return false, nil
	}
	for _, claim := range o.Claims() {
		lease := &coordination.Lease{}
		key := types.NamespacedName{Namespace: r.namespace, Name: claim}
		there, err := r.current.Get(ctx, key, lease)
		if err != nil || there && decide.Claimed(lease, time.Now()) {
			return err == nil, err
		}
	}
	return false, nil
}

// say writes the status, and has an event for what people wait for.
func (r snapshots) say(ctx context.Context, was, said *v1alpha1.VMSnapshot, next decide.Action) error {
	if err := r.client.Status().Update(ctx, said, schema.Strict); err != nil {
		return err
	}
	isReady := func(s *v1alpha1.VMSnapshot) bool {
		return meta.IsStatusConditionTrue(s.Status.Conditions, decide.CondReady)
	}
	switch {
	case next.Refused:
		r.events.Eventf(said, nil, corev1.EventTypeWarning, eventOfRefusal(said), "Capture", "%s: %s", next.Waits,
			next.Message)
	case next.Waits == decide.ReasonAmbiguous, decide.OfClass(next.Waits):
		r.events.Eventf(said, nil, corev1.EventTypeWarning, string(next.Waits), "Look", "%s", next.Message)
	case isReady(said) && !isReady(was):
		r.events.Eventf(said, nil, corev1.EventTypeNormal, eventCreated, "Capture", "snapshot %s", said.Status.Digest)
	}
	return nil
}

func (r snapshots) do(ctx context.Context, o decide.Snapshot, next decide.Action) error {
	snap := o.Object
	switch next.Do {
	case decide.None, decide.TellWorkload: // tell does that
		return nil
	case decide.AddFinalizer, decide.DropFinalizer:
		was := client.MergeFromWithOptions(snap.DeepCopy(), client.MergeFromWithOptimisticLock{})
		if next.Do == decide.AddFinalizer {
			controllerutil.AddFinalizer(snap, decide.FinalizerSnapshot)
		} else {
			controllerutil.RemoveFinalizer(snap, decide.FinalizerSnapshot)
		}
		return ignoreAbsent(r.client.Patch(ctx, snap, was))
	case decide.MakeContent:
		err := r.client.Create(ctx, next.Content, schema.Strict)
		if err != nil && !apierrors.IsAlreadyExists(err) {
			r.events.Eventf(snap, nil, corev1.EventTypeWarning, eventOrderFailed, "Order", "%s", err.Error())
		}
		return err // one that exists already is read again, and is adopted or refused
	case decide.DeleteContent:
		return ignoreAbsent(r.client.Delete(ctx, next.Content, client.Preconditions{UID: &next.Content.UID}))
	case decide.AdoptContent, decide.ReleaseContent:
		return r.changeContent(ctx, next)
	case decide.TrimSnapshot:
		_, err := r.records.service.Trim(ctx, &nodev1.TrimRequest{Vm: next.Record.GetVm(), Uid: next.Record.GetUid(),
			Digest: next.Digest, Ordered: true})
		return err
	case decide.ReleaseSnapshot:
		return r.records.release(ctx, next.Held, next.Keep)
	}
	return fmt.Errorf("%s of VMSnapshot %s/%s: %w", next.Do, snap.Namespace, snap.Name, errdefs.ErrNotImplemented)
}

func (r snapshots) changeContent(ctx context.Context, next decide.Action) error {
	c := next.Content
	was := client.MergeFromWithOptions(c.DeepCopy(), client.MergeFromWithOptimisticLock{})
	if next.Do == decide.ReleaseContent {
		controllerutil.RemoveFinalizer(c, decide.FinalizerSnapshot)
	} else {
		labels := maps.Clone(c.Labels)
		if labels == nil {
			labels = map[string]string{}
		}
		labels[decide.LabelSnapshotUID] = c.Spec.SnapshotRef.UID
		labels[decide.LabelNode] = decide.NodeLabel(c.Spec.Source.NodeName)
		c.Labels = labels
		controllerutil.AddFinalizer(c, decide.FinalizerSnapshot)
	}
	return ignoreAbsent(r.client.Patch(ctx, c, was))
}
