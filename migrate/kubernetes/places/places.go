// Package places makes the pods of wakes and moves, and ends them. It is where the engine's operations meet the
// scheduler, which chooses a node for a pod that exists.
package places

import (
	"context"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/engine"
	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/operator"
	"godwit.dev/godwit/migrate/kubernetes/pods"
	"godwit.dev/godwit/migrate/kubernetes/store"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Places are pods. A place is the UID of one.
type Places struct {
	Cached  client.Reader // may say that a pod waits, and no more
	Current operator.View // reads from the API server
	Writer  client.Writer
	Events  events.EventRecorder // nil: nothing is told
}

var _ engine.Places = (*Places)(nil)

// Makes implements engine.Places: of VMs that have a VirtualMachine.
func (p *Places) Makes(ctx context.Context, rec *nodev1.Record) (bool, error) {
	key, ok := store.NameOf(rec.GetVm())
	switch {
	case !ok:
		return false, nil
	case pods.OfSandbox(rec):
		return true, nil
	}
	vm := &v1alpha1.VirtualMachine{}
	there, err := p.Current.Get(ctx, key, vm)
	if err != nil {
		return false, fmt.Errorf("%w: %w", err, errdefs.ErrUnavailable)
	}
	if !there {
		return false, nil
	}
	has, err := p.Current.Has(ctx, vm, rec)
	if err != nil {
		return false, fmt.Errorf("%w: %w", err, errdefs.ErrUnavailable)
	}
	return has, nil
}

// Place implements engine.Places. The pod of an attempt has one name, so that a pod that was made before is found. A
// pod that waits for the scheduler costs no request: the cache tells of it.
func (p *Places) Place(ctx context.Context, rec *nodev1.Record) (node, place string, err error) {
	op := rec.GetOperation()
	key, ok := store.NameOf(op.GetVm())
	if !ok {
		return "", "", fmt.Errorf("VM %s is no VirtualMachine's: %w", op.GetVm().GetId(), errdefs.ErrFailedPrecondition)
	}
	if pods.OfSandbox(rec) {
		return sandboxPlace(op)
	}
	of := attempt{op: op, uid: rec.GetUid(), number: op.GetAttempt()}
	key = types.NamespacedName{Namespace: key.Namespace, Name: pods.Name(key.Name, op.GetGeneration()+1, of.number)}
	pod := &corev1.Pod{}
	if err := p.Cached.Get(ctx, key, pod); err == nil && of.has(pod) && waits(pod) {
		return "", "", notYet(pod)
	}
	there, err := p.Current.Get(ctx, key, pod)
	switch {
	case err != nil:
		return "", "", fmt.Errorf("%w: %w", err, errdefs.ErrUnavailable)
	case !there:
		return "", "", p.make(ctx, rec)
	case !of.has(pod):
		return "", "", engine.NotYet(fmt.Sprintf("pod %s, which has the name of the next one, is not of this operation",
			pod.Name))
	case pod.DeletionTimestamp != nil:
		return "", "", engine.NotYet(fmt.Sprintf("pod %s ends, and is made again", pod.Name))
	case pods.Ended(pod):
		return "", "", fmt.Errorf("pod %s has ended before the VM came: %s %s: %w", pod.Name, pod.Status.Reason,
			pod.Status.Message, errdefs.ErrFailedPrecondition)
	case pod.Spec.NodeName == "":
		return "", "", notYet(pod)
	}
	return pod.Spec.NodeName, string(pod.UID), nil
}

// sandboxPlace is where a VM of a Sandbox wakes: in the pod that agent-sandbox has made, and that asked. No other
// operation brings such a VM anywhere: its pod would not be made.
func sandboxPlace(op *nodev1.Operation) (node, place string, err error) {
	if place = pods.WokenFor(op); place == "" || op.GetWish() == "" {
		return "", "", fmt.Errorf("VM %s is of a Sandbox, whose pods agent-sandbox makes: delete its pod, and it wakes in "+
			"the next one: %w", op.GetVm().GetId(), errdefs.ErrFailedPrecondition)
	}
	return op.GetWish(), place, nil
}

// make makes the pod of the attempt that rec has, from what is true now. The pod is answered once it has a node.
func (p *Places) make(ctx context.Context, rec *nodev1.Record) error {
	op := rec.GetOperation()
	key, _ := store.NameOf(op.GetVm())
	o, there, err := p.Current.VM(ctx, key)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", err, errdefs.ErrUnavailable)
	case !there:
		return fmt.Errorf("VirtualMachine %s is gone: %w", key, errdefs.ErrFailedPrecondition)
	case o.Unread != nil:
		return fmt.Errorf("%w: %w", o.Unread, errdefs.ErrUnavailable)
	}
	if err := p.Current.Schemas.Check(ctx, "virtualmachines"); err != nil { // its template would be a part of one
		return engine.NotYet(err.Error())
	}
	now := o.Record.GetOperation()
	if o.Record.GetUid() != rec.GetUid() || now.GetId() != op.GetId() || now.GetAttempt() != op.GetAttempt() ||
		now.GetPhase() != op.GetPhase() || !record.Unplaced(now) {
		return engine.NotYet("the record has changed")
	}
	next := decide.Arrival(o)
	if next.Do != decide.MakePod {
		if next.Refused {
			return fmt.Errorf("%s: %w", next.Message, errdefs.ErrFailedPrecondition)
		}
		return engine.NotYet(next.Message)
	}
	err = p.Writer.Create(ctx, next.Pod)
	if err == nil && p.Events != nil {
		p.Events.Eventf(o.Object, nil, corev1.EventTypeNormal, operator.EventOf(next), string(next.Do), "pod %s",
			next.Pod.Name)
	}
	switch {
	case err == nil, apierrors.IsAlreadyExists(err):
		return engine.NotYet(fmt.Sprintf("pod %s waits for a node", next.Pod.Name))
	case apierrors.IsInvalid(err), apierrors.IsForbidden(err): // also a quota that has no room
		return fmt.Errorf("make pod %s: %w: %w", next.Pod.Name, err, errdefs.ErrFailedPrecondition)
	}
	return fmt.Errorf("make pod %s: %w: %w", next.Pod.Name, err, errdefs.ErrUnavailable)
}

// Settled implements engine.Places: the pod that the VM has come into is ready, or the VM is being deleted, and its pod
// does not get ready any more.
func (p *Places) Settled(ctx context.Context, rec *nodev1.Record) error {
	op := rec.GetOperation()
	key, _ := store.NameOf(op.GetVm())
	vm := &v1alpha1.VirtualMachine{}
	if err := p.Cached.Get(ctx, key, vm); err == nil && vm.DeletionTimestamp != nil && pods.Claims(vm, rec.GetUid()) {
		return nil
	}
	key.Name = pods.Name(key.Name, op.GetGeneration()+1, op.GetAttempt())
	pod := &corev1.Pod{}
	if err := p.Cached.Get(ctx, key, pod); err == nil && !decide.Ready(pod) {
		return engine.NotYet(fmt.Sprintf("pod %s is not ready yet", key.Name))
	}
	there, err := p.Current.Get(ctx, key, pod)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", err, errdefs.ErrUnavailable)
	case !there, string(pod.UID) != op.GetPlace(), !decide.Ready(pod):
		return engine.NotYet(fmt.Sprintf("pod %s is not ready yet", key.Name))
	}
	return nil
}

// Vacate implements engine.Places. A pod that the record names is never ended here. The node ends the containers; what
// holds a pod whose deletion was accepted is its shim.
func (p *Places) Vacate(ctx context.Context, rec *nodev1.Record, number uint32) error {
	op := rec.GetOperation()
	key, ok := store.NameOf(op.GetVm())
	if !ok || pods.OfSandbox(rec) { // agent-sandbox ends its pods itself
		return nil
	}
	all := &corev1.PodList{}
	if err := p.Current.List(ctx, all, client.InNamespace(key.Namespace),
		client.MatchingLabels{pods.LabelVM: key.Name}); err != nil {
		return fmt.Errorf("list pods of VM %s: %w: %w", key, err, errdefs.ErrUnavailable)
	}
	of := attempt{op: op, uid: rec.GetUid(), number: number}
	for i := range all.Items {
		pod := &all.Items[i]
		if !of.has(pod) || pods.Names(rec, pod) || pod.DeletionTimestamp != nil {
			continue
		}
		err := p.Writer.Delete(ctx, pod, client.Preconditions{UID: &pod.UID})
		if err != nil && !store.IsAbsent(err) && !apierrors.IsConflict(err) { // by then it is another pod
			return fmt.Errorf("delete pod %s: %w: %w", pod.Name, err, errdefs.ErrUnavailable)
		}
	}
	return nil
}

// attempt of an operation on the VM of that uid. Number 0 stands for the source.
type attempt struct {
	op     *nodev1.Operation
	uid    string
	number uint32
}

// has reports whether a pod is the attempt's. One without the owner that pods are made with is of no attempt.
func (a attempt) has(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	member := strings.Contains(a.uid, ".") // whose record hangs on its set
	if owner == nil || owner.Kind != "VirtualMachine" || pod.Labels[pods.LabelRecordUID] != a.uid ||
		!member && string(owner.UID) != a.uid {
		return false
	}
	if a.number == 0 {
		return pod.Spec.NodeName == a.op.GetSource() && pods.Generation(pod) <= a.op.GetGeneration()
	}
	return pod.Labels[pods.LabelOperation] == a.op.GetId() && pods.Attempt(pod) == a.number
}

func waits(pod *corev1.Pod) bool {
	return pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil && !pods.Ended(pod)
}

func notYet(pod *corev1.Pod) error {
	if why := decide.Unscheduled(pod); why != "" {
		return engine.NotYet(why)
	}
	return engine.NotYet(fmt.Sprintf("pod %s waits for a node", pod.Name))
}
