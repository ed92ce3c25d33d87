package control

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/operator"
	"godwit.dev/godwit/migrate/kubernetes/pods"
	"godwit.dev/godwit/migrate/kubernetes/store"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Pods answers the nodes about pods. Each answer is read from the API server itself.
type Pods struct {
	View          operator.View
	Cached        client.Reader // knows the records by the uids of their VMs (indexUID)
	Events        events.EventRecorder
	Writer        client.Writer
	Orders        operator.Engine
	Notes         Notes
	ShutdownGrace time.Duration // as in decide.Stop
}

// Notes are those of the store of the records.
type Notes interface {
	NoteNew(ctx context.Context, kind, key string, value []byte) error
	NoteOf(ctx context.Context, kind, key string) (value []byte, there bool, err error)
}

var _ nodev1.PodsService = (*Pods)(nil)

// Resolve implements nodev1.PodsService.
func (p *Pods) Resolve(ctx context.Context, req *nodev1.ResolveRequest) (*nodev1.ResolveResponse, error) {
	seen, err := p.observe(ctx, req)
	if err != nil {
		return nil, err
	}
	o := decide.Resolve{Node: seen.node, Asked: req.GetPod(), Named: req.GetVm().GetId(), Pod: seen.pod, VM: seen.vm,
		Set: seen.set, Record: seen.record}
	if owner := decide.VMOwner(o.Pod); owner != nil && req.GetVm().GetId() != o.Pod.Namespace+"."+owner.Name {
		return nil, fmt.Errorf("pod %s/%s is of VirtualMachine %s, and calls itself VM %s: delete the pod: %w",
			o.Pod.Namespace, o.Pod.Name, owner.Name, req.GetVm().GetId(), errdefs.ErrPermissionDenied)
	}
	if o.OptedIn() {
		return p.resolveSandbox(ctx, o)
	}
	if err := p.optedOut(ctx, o); err != nil {
		return nil, err
	}
	resolved, err := decide.NextResolve(o)
	if err != nil {
		return nil, err
	}
	return &nodev1.ResolveResponse{Uid: resolved.UID, GraceMs: resolved.Grace.Milliseconds()}, nil
}

// Stopping implements nodev1.PodsService.
func (p *Pods) Stopping(ctx context.Context, req *nodev1.StoppingRequest) (*nodev1.StoppingResponse, error) {
	now := time.Now()
	seen, err := p.observe(ctx, req)
	if err != nil {
		return nil, err
	}
	o := decide.Stop{Node: seen.node, Asked: req.GetPod(), UID: req.GetUid(), Now: now, Pod: seen.pod, VM: seen.vm,
		Set: seen.set, Record: seen.record}
	node := &corev1.Node{}
	there, err := p.View.Get(ctx, types.NamespacedName{Name: o.Node}, node)
	if err != nil {
		return nil, unread(err)
	}
	o.Shutdown = there && decide.ShutsDown(node)
	if pods.OfSandbox(o.Record) {
		if o.Sandbox, err = p.sandboxOf(ctx, req.GetVm()); err != nil {
			return nil, err
		}
	}
	stop := decide.NextStop(o)
	if failed := req.GetError(); failed != "" {
		if told := decide.FailedStop(o); told != "" {
			p.Events.Eventf(aborted(o), nil, corev1.EventTypeWarning, told, "Stop", "pod %s ends: %s", req.GetPod().GetName(),
				failed)
		}
		stop = decide.Stopped{Reason: "its hibernate came to nothing"}
	}
	return &nodev1.StoppingResponse{Hibernate: stop.Hibernate, Wait: stop.Wait, Stays: stop.Stays,
		GraceMs: stop.Grace.Milliseconds(), FromSignal: stop.FromSignal, Reason: stop.Reason}, nil
}

// Boots refuses that a node boots the VM of a VirtualMachine that has no pod there. It reads from the API server.
func (p *Pods) Boots(ctx context.Context, rec *nodev1.Record, node string) error {
	key, ok := store.NameOf(rec.GetVm())
	switch {
	case !ok:
		return nil
	case pods.OfSandbox(rec):
		return p.bootsSandbox(ctx, rec, node)
	}
	vm := &v1alpha1.VirtualMachine{}
	there, err := p.View.Get(ctx, key, vm)
	if err != nil {
		return unread(err)
	}
	if there {
		if there, err = p.View.Has(ctx, vm, rec); err != nil {
			return unread(err)
		}
	}
	if !there {
		return fmt.Errorf("boot VM %s at node %s: it has no VirtualMachine: %w", key, node, errdefs.ErrPermissionDenied)
	}
	all := &corev1.PodList{}
	if err := p.View.List(ctx, all, client.InNamespace(key.Namespace),
		client.MatchingLabels{pods.LabelVM: key.Name}); err != nil {
		return unread(fmt.Errorf("list pods of VM %s: %w", key, err))
	}
	for i := range all.Items {
		if decide.BootsIn(rec, &all.Items[i], node) {
			return nil
		}
	}
	return fmt.Errorf("boot VM %s at node %s: no pod of it is bound to that node: %w", key, node,
		errdefs.ErrPermissionDenied)
}

// aborted is what the event of a hibernate that failed is about: the pods of a Sandbox have no VirtualMachine.
func aborted(o decide.Stop) runtime.Object {
	if o.VM != nil {
		return o.VM
	}
	return o.Pod
}

// question is about a pod, and the VM that it says it is.
type question interface {
	GetPod() *nodev1.Pod
	GetVm() *nodev1.VM
}

// observed is what the API server has of both, and the node that asks.
type observed struct {
	node   string
	pod    *corev1.Pod
	vm     *v1alpha1.VirtualMachine
	set    *v1alpha1.VirtualMachineSet // as in decide.Stop
	record *nodev1.Record
}

func (p *Pods) observe(ctx context.Context, asked question) (o observed, err error) {
	if o.node, err = caller(ctx, asked); err != nil {
		return o, err
	}
	if o.pod, err = p.pod(ctx, asked.GetPod()); err != nil {
		return o, err
	}
	if o.vm, o.record, err = p.vm(ctx, asked.GetVm()); err != nil {
		return o, err
	}
	if o.set, err = p.View.SetFor(ctx, o.vm, o.record); err != nil {
		return o, unread(err)
	}
	return o, nil
}

// caller is the node that asks about a pod. The controller's own host has none.
func caller(ctx context.Context, asked question) (string, error) {
	node, remote := controller.Peer(ctx)
	switch pod := asked.GetPod(); {
	case !remote || node == "":
		return "", fmt.Errorf("a node asks about its own pods, by its certificate: %w", errdefs.ErrPermissionDenied)
	case pod.GetNamespace() == "" || pod.GetName() == "":
		return "", fmt.Errorf("pod: namespace or name is empty, and needed: %w", errdefs.ErrInvalidArgument)
	}
	return node, transition.CheckVM(asked.GetVm())
}

// pod reads a pod; nil: the API server has none of that uid.
func (p *Pods) pod(ctx context.Context, asked *nodev1.Pod) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	there, err := p.View.Get(ctx, types.NamespacedName{Namespace: asked.GetNamespace(), Name: asked.GetName()}, pod)
	if err != nil {
		return nil, unread(err)
	}
	if !there || string(pod.UID) != asked.GetUid() {
		return nil, nil
	}
	return pod, nil
}

// vm reads what there is of a VM by its name in the records; nil: the API server has none.
func (p *Pods) vm(ctx context.Context, named *nodev1.VM) (*v1alpha1.VirtualMachine, *nodev1.Record, error) {
	key, ok := store.NameOf(named)
	if !ok {
		return nil, nil, nil
	}
	vm := &v1alpha1.VirtualMachine{}
	there, err := p.View.Get(ctx, key, vm)
	if err != nil {
		return nil, nil, unread(err)
	}
	if !there {
		vm = nil
	}
	rec, _, err := p.View.Record(ctx, key.Namespace, key.Name)
	if err != nil {
		return nil, nil, unread(err)
	}
	return vm, rec, nil
}

// unread is of what could not be read: it says nothing of what is there.
func unread(err error) error { return fmt.Errorf("%w: %w", err, errdefs.ErrUnavailable) }
