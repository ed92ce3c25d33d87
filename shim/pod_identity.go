package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/shim/journal"
)

// checkPod wants a snapshot of a pod for a pod, and refuses to bring one back by itself. A kubelet makes the sandbox
// of a pod anew whose sandbox has ended, and the VM of that pod was sent to sleep by order.
func (c *creation) checkPod(was *spec.Spec) error {
	is := c.bundle.Spec.Pod
	if (is == nil) != (was.Pod == nil) {
		return mismatch(c.source(), "kind", kindOf(was), kindOf(c.bundle.Spec))
	}
	if is == nil {
		return nil
	}
	if is.Namespace != was.Pod.Namespace {
		return mismatch(c.source(), "namespace of the pod", was.Pod.Namespace, is.Namespace)
	}
	if c.intent.Set() || is.UID == "" || is.UID != was.Pod.UID || c.record.GetHome() != c.host.Config.Node {
		return nil
	}
	return fmt.Errorf("pod %s/%s (uid %s) ran on this node before it went to sleep, and a kubelet makes a pod anew that "+
		"has ended. To wake it on this node: godwit -n %s wake %s. On another node it wakes as it is: %w", is.Namespace,
		is.Name, is.UID, c.vm.namespace, c.vm.id, errdefs.ErrFailedPrecondition)
}

// otherSandbox refuses a pod whose VM another pod has: old is the journal of that one, whose shim lives. A sandbox that
// has not been started has no VMM yet, and has the VM all the same. One that has left, or that containerd has deleted,
// has it no more.
func (c *creation) otherSandbox(old *journal.Journal) error {
	holds := old.Phase == journal.Own || old.Phase.Open()
	if old.Spec == nil || old.Spec.Pod == nil || c.bundle.Spec.Pod == nil || !holds || old.Adopted ||
		old.Shim.PID == os.Getpid() || old.Bundle == c.req.GetBundle() {
		return nil
	}
	_, err := os.Stat(old.Bundle)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	was, sandbox := old.Spec.Pod, filepath.Base(old.Bundle)
	return fmt.Errorf("annotation %s: sandbox %s of pod %s/%s has VM %s on this node. A VM is one pod's: give this pod "+
		"another name for its VM, or remove that sandbox first (crictl rmp -f %s): %w", spec.AnnotationVM, sandbox,
		was.Namespace, was.Name, c.vm.id, sandbox, errdefs.ErrFailedPrecondition)
}

// takeOrder makes an open wake or move of a pod to this node what its Create is to do: CRI has no options by which it
// could say so.
func (c *creation) takeOrder(ctx context.Context) error {
	op := c.record.GetOperation()
	if c.bundle.Spec.Pod == nil || c.intent.Set() || op.GetDestination() != c.host.Config.Node {
		return nil
	}
	switch {
	case op.GetKind() == nodev1.Kind_KIND_MIGRATE:
		return c.takeMove(ctx)
	case op.GetKind() == nodev1.Kind_KIND_WAKE && op.GetManaged():
		c.intent.Operation, c.intent.Attempt, c.intent.Digest = op.GetId(), op.GetAttempt(), op.GetDigest()
	}
	return nil
}

func kindOf(s *spec.Spec) string {
	if s.Pod != nil {
		return "a pod"
	}
	return "no pod"
}
