package shim

import (
	"fmt"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/spec"
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

// takeOrder makes an open wake of a pod to this node what its Create is to do: CRI has no options by which it could say
// so.
func (c *creation) takeOrder() {
	op := c.record.GetOperation()
	if c.bundle.Spec.Pod == nil || c.intent.Set() || op.GetKind() != nodev1.Kind_KIND_WAKE || !op.GetManaged() ||
		op.GetDestination() != c.host.Config.Node {
		return
	}
	c.intent.Operation, c.intent.Attempt, c.intent.Digest = op.GetId(), op.GetAttempt(), op.GetDigest()
}

func kindOf(s *spec.Spec) string {
	if s.Pod != nil {
		return "a pod"
	}
	return "no pod"
}
