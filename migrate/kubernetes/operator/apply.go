package operator

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/pods"
	"godwit.dev/godwit/migrate/kubernetes/schema"
	"godwit.dev/godwit/migrate/kubernetes/store"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// again is how long something is waited for that no watch may tell of.
const again = 2 * time.Second

// result has a lost race looked at again: it is no error. What changed is told by the watches too.
func result(next decide.Action, err error) (ctrl.Result, error) {
	if apierrors.IsConflict(err) || errdefs.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return ctrl.Result{RequeueAfter: again}, nil
	}
	if next.Do == decide.OrderReclaim && (errdefs.IsUnavailable(err) || errdefs.IsDeadlineExceeded(err)) {
		return ctrl.Result{RequeueAfter: next.After}, nil // the source is waited for, which no watch tells of
	}
	return ctrl.Result{RequeueAfter: next.After}, err
}

// tell writes the status of an object, and has an event for what is refused.
func (b base) tell(ctx context.Context, o client.Object, next decide.Action) error {
	if err := b.client.Status().Update(ctx, o, schema.Strict); err != nil {
		return err
	}
	if next.Refused || decide.OfClass(next.Waits) {
		b.events.Eventf(o, nil, corev1.EventTypeWarning, string(next.Waits), "Refuse", "%s", next.Message)
	}
	return nil
}

// ignoreAbsent passes over that an object has gone meanwhile: there is nothing left to say of it.
func ignoreAbsent(err error) error {
	if store.IsAbsent(err) {
		return nil
	}
	return err
}

// apply makes what was decided of a VM.
func (b base) apply(ctx context.Context, o decide.VM, next decide.Action) error {
	vm := o.Object
	if next.Do == decide.None {
		return nil
	}
	err := b.do(ctx, o, next)
	if next.Do == decide.OrderGiveUp && !o.Fenced && errors.Is(err, ErrNodeAnswers) {
		return nil // no one has called it lost, and its status says what hangs there
	}
	if err != nil {
		if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			b.events.Eventf(vm, nil, corev1.EventTypeWarning, string(next.Do)+"Failed", string(next.Do), "%s", err.Error())
		}
		return fmt.Errorf("%s of VM %s/%s: %w", next.Do, vm.Namespace, vm.Name, err)
	}
	kind := corev1.EventTypeNormal
	if next.Do == decide.OrderGiveUp || next.Do == decide.StopVM {
		kind = corev1.EventTypeWarning
	}
	b.events.Eventf(vm, nil, kind, EventOf(next), string(next.Do), "%s", done(next))
	return nil
}

func done(next decide.Action) string {
	switch {
	case next.Pod != nil:
		return "pod " + next.Pod.Name
	case next.Do == decide.OrderGiveUp:
		return "the VM ends with the lost node " + next.Node + ", and its snapshots are deleted"
	case next.Do == decide.OrderReclaim:
		return "node " + next.Node + " is lost: the VM goes on at the source of its move, as it was at the switch-over, " +
			"or from its newest snapshot if the source has nothing any more"
	case next.Do == decide.StopVM:
		return next.Message + ", and the VM is there for a snapshot alone"
	case next.Kind != "":
		return string(next.Kind) + " " + next.Node
	}
	return next.Operation
}

func (b base) do(ctx context.Context, o decide.VM, next decide.Action) error {
	vm, id := o.Object, pods.RecordID(o.Object)
	switch next.Do {
	case decide.AddFinalizer, decide.DropFinalizer, decide.SetMode, decide.StopVM:
		return b.change(ctx, vm, next.Do)
	case decide.EnsureRecord:
		return b.records.ensure(ctx, id, next)
	case decide.TakeSnapshot:
		return b.records.take(ctx, o.Record, next.Held)
	case decide.BeginVM:
		return b.begin(ctx, o.Record, next.Held, o.From.Object.Status.Images)
	case decide.RemoveRecord:
		return b.remove(ctx, o.Record)
	case decide.MakePod:
		return b.makePod(ctx, next.Pod)
	case decide.NoteRun:
		if vm.Spec.Network == v1alpha1.NetworkKeep && next.AddressesOf != o.AddressesOf {
			var err error
			if next.Addresses, err = b.unused(ctx, vm, o.Record.GetUid(), next.Addresses); err != nil {
				return err
			}
		}
		return b.noteRun(ctx, o.Record, next)
	case decide.DeletePod:
		return ignoreAbsent(b.client.Delete(ctx, next.Pod, asSeen(next.Pod), ends(next)))
	case decide.SetGate:
		return ignoreAbsent(b.setGate(ctx, next))
	case decide.MakeOperation:
		if err := b.current.Schemas.Check(ctx, ofOperations); err != nil { // maybe it has had no order that was read
			return err
		}
		return b.client.Create(ctx, order(vm, next, map[string]string{decide.LabelFor: string(vm.UID)}, vm.Generation),
			schema.Strict)
	case decide.AbortOperation:
		for i := range o.Orders {
			if op := &o.Orders[i]; op.Name == next.Operation {
				was := client.MergeFromWithOptions(op.DeepCopy(), client.MergeFromWithOptimisticLock{})
				op.Spec.Abort = true
				return ignoreAbsent(b.client.Patch(ctx, op, was))
			}
		}
	case decide.OrderAbort, decide.OrderRecover, decide.OrderReclaim, decide.OrderGiveUp:
		if b.engine != nil {
			return b.order(ctx, o, next)
		}
	}
	return fmt.Errorf("%s: %w", next.Do, errdefs.ErrNotImplemented)
}

// ends says how a pod is deleted.
func ends(next decide.Action) client.DeleteOption {
	o := &client.DeleteOptions{}
	if next.AtOnce {
		o.GracePeriodSeconds = ptr(int64(0))
	}
	return o
}

// asSeen has a pod deleted only if it is the one that was seen, and has no node still if it had none.
func asSeen(pod *corev1.Pod) client.Preconditions {
	if pod.Spec.NodeName == "" {
		return client.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion}
	}
	return client.Preconditions{UID: &pod.UID}
}

// order tells the engine what no VMOperation does.
func (b base) order(ctx context.Context, o decide.VM, next decide.Action) error {
	switch next.Do {
	case decide.OrderRecover:
		return b.engine.Recover(ctx, Order{Record: o.Record})
	case decide.OrderReclaim:
		return b.engine.Recover(ctx, Order{Record: o.Record, FromSource: true})
	case decide.OrderGiveUp:
		hold, err := b.held(ctx, o.Record)
		if err != nil {
			return err
		}
		return b.engine.GiveUp(ctx, o.Record, hold)
	}
	return b.engine.Abort(ctx, o.Record.GetVm(), next.Operation)
}

// change edits the object itself, as it was seen.
func (b base) change(ctx context.Context, vm *v1alpha1.VirtualMachine, what decide.Do) error {
	was := client.MergeFromWithOptions(vm.DeepCopy(), client.MergeFromWithOptimisticLock{})
	switch what {
	case decide.AddFinalizer:
		controllerutil.AddFinalizer(vm, decide.FinalizerVM)
	case decide.DropFinalizer:
		controllerutil.RemoveFinalizer(vm, decide.FinalizerVM)
	case decide.SetMode:
		vm.Spec.OperatingMode = v1alpha1.ModeHibernated
	case decide.StopVM:
		vm.Spec.OperatingMode = v1alpha1.ModeStopped
	}
	return ignoreAbsent(b.client.Patch(ctx, vm, was))
}

// makePod makes a pod. One that has its name is ours already, or is waited for.
func (b base) makePod(ctx context.Context, pod *corev1.Pod) error {
	err := b.client.Create(ctx, pod.DeepCopy())
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	old := &corev1.Pod{}
	there, rerr := b.current.Get(ctx, client.ObjectKeyFromObject(pod), old)
	if rerr != nil {
		return rerr
	}
	mine := there && old.DeletionTimestamp == nil && metav1.GetControllerOf(old) != nil &&
		metav1.GetControllerOf(old).UID == metav1.GetControllerOf(pod).UID &&
		old.Labels[pods.LabelOperation] == pod.Labels[pods.LabelOperation]
	if mine {
		return nil
	}
	return err
}

// setGate says whether the VM is in a pod, and how it came there, in one write.
func (b base) setGate(ctx context.Context, next decide.Action) error {
	pod := next.Pod
	was := client.StrategicMergeFrom(pod.DeepCopy(), client.MergeFromWithOptimisticLock{})
	status := corev1.ConditionFalse
	if next.On {
		status = corev1.ConditionTrue
	}
	setPodCondition(pod, corev1.PodCondition{Type: pods.GateRunning, Status: status})
	if next.Restored != "" {
		setPodCondition(pod, corev1.PodCondition{Type: pods.CondRestored, Status: corev1.ConditionTrue,
			Reason: string(next.Restored), Message: "the VM went on here with its memory"})
	}
	return b.client.Status().Patch(ctx, pod, was)
}

// setPodCondition leaves the time of the last change where the status is as it was.
func setPodCondition(pod *corev1.Pod, next corev1.PodCondition) {
	next.LastTransitionTime = metav1.Now()
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == next.Type {
			if c.Status == next.Status {
				next.LastTransitionTime = c.LastTransitionTime
			}
			*c = next
			return
		}
	}
	pod.Status.Conditions = append(pod.Status.Conditions, next)
}

// order is a VMOperation for a VM. It goes with the VM.
func order(vm *v1alpha1.VirtualMachine, next decide.Action, labels map[string]string, generation int64,
) *v1alpha1.VMOperation {
	return &v1alpha1.VMOperation{ObjectMeta: metav1.ObjectMeta{GenerateName: vm.Name + "-", Namespace: vm.Namespace,
		Labels:      labels,
		Annotations: map[string]string{decide.AnnotationGeneration: strconv.FormatInt(generation, 10)},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: v1alpha1.GroupVersion.String(), Kind: "VirtualMachine",
			Name: vm.Name, UID: vm.UID}}},
		Spec: v1alpha1.VMOperationSpec{VMRef: v1alpha1.VMRef{Name: vm.Name, UID: string(vm.UID)}, Kind: next.Kind,
			NodeName: next.Node, MigrationPolicy: vm.Spec.Migration}}
}

// kinds are those of the records.
var kinds = map[v1alpha1.OperationKind]nodev1.Kind{
	v1alpha1.KindHibernate:  nodev1.Kind_KIND_HIBERNATE,
	v1alpha1.KindWake:       nodev1.Kind_KIND_WAKE,
	v1alpha1.KindMigrate:    nodev1.Kind_KIND_MIGRATE,
	v1alpha1.KindCheckpoint: nodev1.Kind_KIND_CHECKPOINT,
}
