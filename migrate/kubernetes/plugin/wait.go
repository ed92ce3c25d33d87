package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
)

// pollInterval is how often the object is looked at that an order is about.
const pollInterval = 500 * time.Millisecond

// goal is what has to come of an order. It prints as the order.
type goal interface {
	fmt.Stringer
	wait(ctx context.Context, v vms) (done string, err error)
}

// succeeded is the goal of a VMOperation.
type succeeded struct{ op *v1alpha1.VMOperation }

func (g succeeded) String() string { return fmt.Sprintf("VMOperation %s", g.op.Name) }

func (g succeeded) wait(ctx context.Context, v vms) (string, error) {
	op := &v1alpha1.VMOperation{}
	err := v.until(ctx, g.op, op, func() (bool, error) { return ended(op) })
	if err != nil {
		return "", err
	}
	switch {
	case op.Status.Digest != "" && op.Spec.Kind == v1alpha1.KindCheckpoint:
		return op.Status.Digest, nil
	case op.Status.Destination != "":
		return fmt.Sprintf("VM %s runs on node %s", op.Spec.VMRef.Name, op.Status.Destination), nil
	}
	return fmt.Sprintf("VMOperation %s has succeeded", op.Name), nil
}

// ended reports whether nothing more comes of an order; one that failed is an error.
func ended(op *v1alpha1.VMOperation) (bool, error) {
	switch op.Status.Phase {
	case v1alpha1.MigrationSucceeded:
		return true, nil
	case v1alpha1.MigrationFailed:
		return true, fmt.Errorf("VMOperation %s: %s", op.Name, op.Status.Reason)
	}
	return false, &waits{fmt.Sprintf("VMOperation %s is %s", op.Name, op.Status.Phase), said(op.Status.Conditions)}
}

// inPhase is the goal of a change of a VM itself.
type inPhase struct {
	vm     *v1alpha1.VirtualMachine // as it was written
	phases []v1alpha1.VMPhase
	node   string // empty: any
}

func (g inPhase) String() string { return fmt.Sprintf("VM %s to be %s", g.vm.Name, g.phases[0]) }

func (g inPhase) wait(ctx context.Context, v vms) (string, error) {
	vm := &v1alpha1.VirtualMachine{}
	if err := v.until(ctx, g.vm, vm, func() (bool, error) { return g.reached(vm) }); err != nil {
		return "", err
	}
	if node := vm.Status.Owner.Node; node != "" {
		return fmt.Sprintf("VM %s is %s on node %s", vm.Name, vm.Status.Phase, node), nil
	}
	return fmt.Sprintf("VM %s is %s", vm.Name, vm.Status.Phase), nil
}

// reached reports whether the operator has seen the change, and the VM is what it should be. What the operator refuses
// is an error.
func (g inPhase) reached(vm *v1alpha1.VirtualMachine) (bool, error) {
	if vm.Status.ObservedGeneration < g.vm.Generation {
		return false, &waits{"the operator has not seen the change yet", ""}
	}
	at := g.node == "" || vm.Status.Owner.Node == g.node
	if slices.Contains(g.phases, vm.Status.Phase) && at {
		return true, nil
	}
	why := said(vm.Status.Conditions)
	c := meta.FindStatusCondition(vm.Status.Conditions, decide.CondProgressing)
	if c != nil && c.ObservedGeneration >= g.vm.Generation && slices.Contains(final, decide.Reason(c.Reason)) {
		return true, fmt.Errorf("it is refused: %s: %w", why, errdefs.ErrFailedPrecondition)
	}
	return false, &waits{fmt.Sprintf("it is %s", vm.Status.Phase), why}
}

// final are the reasons that stay until somebody changes something.
var final = []decide.Reason{decide.ReasonInvalid, decide.ReasonRecordOfAnother, decide.ReasonRecordMissing,
	decide.ReasonEngineMissing, decide.ReasonLost, decide.ReasonStateKept, decide.ReasonNotHibernated}

// said is what the condition of progress says.
func said(all []metav1.Condition) string {
	c := meta.FindStatusCondition(all, decide.CondProgressing)
	switch {
	case c == nil:
		return ""
	case c.Message == "":
		return c.Reason
	}
	return c.Reason + ": " + c.Message
}

// waits says what an order waits for.
type waits struct{ state, why string }

func (w *waits) Error() string {
	if w.why == "" {
		return w.state
	}
	return w.state + " (" + w.why + ")"
}

// until reads an object until look says that it is done. An API server that does not answer is asked again. An object
// that is gone, or was made anew, is an error.
func (v vms) until(ctx context.Context, of, into client.Object, look func() (bool, error)) error {
	var last error
	for {
		err := v.Get(ctx, client.ObjectKeyFromObject(of), into)
		switch {
		case apierrors.IsNotFound(err), err == nil && into.GetUID() != of.GetUID():
			return fmt.Errorf("%s was deleted meanwhile: %w", of.GetName(), errdefs.ErrNotFound)
		case err == nil:
			done, err := look()
			if done {
				return err
			}
			last = err
		case ctx.Err() == nil:
			last = err
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return fmt.Errorf("not waited for any more: the order stands: %w", ctx.Err())
			}
			return fmt.Errorf("not done in time: %w. The order stands: %w", last, ctx.Err())
		case <-time.After(pollInterval):
		}
	}
}
