package shim

import (
	"fmt"

	"github.com/containerd/errdefs"

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
	return fmt.Errorf("pod %s/%s (uid %s) ran on this node before it went to sleep. To wake it here, make a pod with "+
		"another uid: this one is made anew by a kubelet as soon as it has ended. On another node it wakes as it is: %w",
		is.Namespace, is.Name, is.UID, errdefs.ErrFailedPrecondition)
}

func kindOf(s *spec.Spec) string {
	if s.Pod != nil {
		return "a pod"
	}
	return "no pod"
}
