package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/operator"
	"godwit.dev/godwit/migrate/kubernetes/pods"
	"godwit.dev/godwit/migrate/kubernetes/store"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Times of a pod of a Sandbox. Its shim asks no longer than timeouts.daemon.
const (
	sandboxBound = 6 * time.Second
	sandboxPause = 100 * time.Millisecond
)

// ownRight is a call of the controller itself: it is not bounded by what the node that asked may do.
type ownRight struct{ context.Context }

// Value implements context.Context.
func (ownRight) Value(any) any { return nil }

// resolveSandbox answers whether a pod is the VM of its Sandbox. It makes the record, and orders the wake of a VM that
// sleeps: the pod is there already, so that no scheduler is asked. What is not done within sandboxBound is asked again.
func (p *Pods) resolveSandbox(ctx context.Context, o decide.Resolve) (*nodev1.ResolveResponse, error) {
	ctx, cancel := context.WithTimeout(ownRight{ctx}, sandboxBound)
	defer cancel()
	for {
		if err := p.observeSandbox(ctx, &o); err != nil {
			return nil, err
		}
		resolved, next, err := decide.NextSandbox(o)
		if err != nil {
			p.refuse(o, err)
			return nil, err
		}
		if next.Do == decide.None && next.Waits == "" {
			return &nodev1.ResolveResponse{Uid: resolved.UID, GraceMs: resolved.Grace.Milliseconds()}, nil
		}
		if err := p.applySandbox(ctx, o, next); err != nil {
			return nil, fmt.Errorf("%s for pod %s/%s: %w", next.Do, o.Pod.Namespace, o.Pod.Name, err)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("pod %s/%s: its VM is not free to come yet (%s): %w", o.Pod.Namespace, o.Pod.Name,
				next.Message, errdefs.ErrUnavailable)
		case <-time.After(sandboxPause):
		}
	}
}

// refuse tells a pod that it has no VM. Another node than its own tells it nothing. Events of one reason are counted,
// and keep the text of the first: so a node that is lost is another reason, and so is a wake that failed.
func (p *Pods) refuse(o decide.Resolve, err error) {
	reason := "VMRefused"
	switch {
	case errors.Is(err, decide.ErrWakeFailed):
		reason = "RestoreFailed"
	case o.Fenced:
		reason = "NodeLost"
	}
	if o.Pod.Spec.NodeName == o.Node {
		p.Events.Eventf(o.Pod, nil, corev1.EventTypeWarning, reason, "Resolve", "%s", err.Error())
	}
}

// optedOut refuses a pod without the opt-in whose Sandbox has a VM.
func (p *Pods) optedOut(ctx context.Context, o decide.Resolve) error {
	owner := pods.SandboxOf(o.Pod)
	if owner == nil {
		return nil
	}
	rec, _, err := p.View.SandboxRecord(ctx, pods.SandboxRecord(o.Pod.Namespace, string(owner.UID)))
	if err != nil {
		return unread(err)
	}
	if err = o.OptedOut(rec); err != nil {
		p.refuse(o, err)
	}
	return err
}

func (p *Pods) observeSandbox(ctx context.Context, o *decide.Resolve) (err error) {
	o.Now, o.Fenced = time.Now(), false
	owner := pods.SandboxOf(o.Pod)
	if o.Record, o.Closed, o.Noted, err = p.View.SandboxHistory(ctx,
		pods.SandboxRecord(o.Pod.Namespace, string(owner.UID))); err != nil {
		return unread(err)
	}
	if !o.Had {
		if _, o.Had, err = p.Notes.NoteOf(ctx, operator.KindSandbox, string(owner.UID)); err != nil {
			return unread(err)
		}
	}
	if at := decide.InHand(o.Record); at != "" && at != o.Node { // none: it is on its way
		if o.Fenced, err = p.View.NodeFenced(ctx, at); err != nil {
			return unread(err)
		}
	}
	// After the word for the node: the policy may have changed before it.
	o.Sandbox, err = p.View.Sandbox(ctx, types.NamespacedName{Namespace: o.Pod.Namespace, Name: owner.Name})
	if err != nil {
		return unread(err)
	}
	return nil
}

// noteSandbox writes down at the record which Sandbox it is of, and that there is one.
func (p *Pods) noteSandbox(ctx context.Context, o decide.Resolve) error {
	if err := operator.NoteSandbox(ctx, p.Writer, o.Named, o.Sandbox.Name); err != nil || o.Had {
		return err
	}
	err := p.Notes.NoteNew(ctx, operator.KindSandbox, o.Sandbox.UID,
		operator.SandboxNote(o.Named, o.Sandbox.Name))
	if errdefs.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// applySandbox makes what was decided. A lost race is looked at again.
func (p *Pods) applySandbox(ctx context.Context, o decide.Resolve, next decide.Action) error {
	vm := &nodev1.VM{Namespace: store.Kubernetes, Id: o.Named}
	var err error
	switch next.Do {
	case decide.EnsureRecord:
		err = p.Orders.Ensure(ctx, vm, string(pods.SandboxOf(o.Pod).UID))
	case decide.NoteOwner:
		err = p.noteSandbox(ctx, o)
	case decide.Order:
		err = p.Orders.Order(ctx, operator.Order{Record: o.Record, Kind: nodev1.Kind_KIND_WAKE, ID: next.Operation,
			Node: next.Node})
	case decide.OrderRecover:
		err = p.Orders.Recover(ctx, operator.Order{Record: o.Record, ID: next.Operation, Node: next.Node})
		p.recovered(o, err)
	case decide.OrderAbort:
		err = p.Orders.Abort(ctx, vm, next.Operation)
	}
	if errdefs.IsConflict(err) || errdefs.IsAborted(err) {
		return nil
	}
	return err
}

// recovered tells a pod that its VM is taken from a lost node, or why it cannot be.
func (p *Pods) recovered(o decide.Resolve, err error) {
	what := "the VM wakes from its newest snapshot, and what it did there since is given up"
	if o.Record.GetOwner().GetNode() == "" {
		what = "the VM, which slept, wakes here"
	}
	switch {
	case errdefs.IsConflict(err), errdefs.IsAborted(err), errdefs.IsUnavailable(err): // it is looked at again
	case err != nil:
		p.Events.Eventf(o.Pod, nil, corev1.EventTypeWarning, "RecoverFailed", "Recover", "%s", err.Error())
	default:
		p.Events.Eventf(o.Pod, nil, corev1.EventTypeWarning, "Recovered", "Recover", "node %s is lost: %s",
			decide.InHand(o.Record), what)
	}
}

// sandboxOf reads the Sandbox that a record says it is of; nil: there is none. A record that does not say it proves
// nothing.
func (p *Pods) sandboxOf(ctx context.Context, vm *nodev1.VM) (*decide.Sandbox, error) {
	_, noted, err := p.View.SandboxRecord(ctx, vm.GetId())
	if err != nil {
		return nil, unread(err)
	}
	if noted == "" {
		return nil, fmt.Errorf("VMRecord %s: annotation %s is empty: %w", vm.GetId(), decide.AnnotationSandbox,
			errdefs.ErrUnavailable)
	}
	key, _ := store.NameOf(vm)
	s, err := p.View.Sandbox(ctx, types.NamespacedName{Namespace: key.Namespace, Name: noted})
	if err != nil {
		return nil, unread(err)
	}
	return s, nil
}

// bootsSandbox refuses that a node boots the VM of a Sandbox whose pod is not there.
func (p *Pods) bootsSandbox(ctx context.Context, rec *nodev1.Record, node string) error {
	s, err := p.sandboxOf(ctx, rec.GetVm())
	if err != nil {
		return err
	}
	pod := &corev1.Pod{}
	if s != nil && s.UID == rec.GetUid() {
		key, _ := store.NameOf(rec.GetVm())
		if _, err := p.View.Get(ctx, types.NamespacedName{Namespace: key.Namespace, Name: s.Pod}, pod); err != nil {
			return unread(err)
		}
	}
	if !decide.BootsSandbox(rec, pod, node) {
		return fmt.Errorf("boot VM %s at node %s: no pod of its Sandbox is bound to that node: %w",
			rec.GetVm().GetId(), node, errdefs.ErrPermissionDenied)
	}
	return nil
}
