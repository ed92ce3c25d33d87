package tasks

import (
	"fmt"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/spec"
)

// awaitsCRI says that the task of a pod is made by CRI alone, which would not know of one that is made here. It is a
// wait, and no failure: the shim of the pod's next sandbox takes the order up, and commits it.
func awaitsCRI(sp *spec.Spec, node string) error {
	return fmt.Errorf("pod %s/%s waits for its sandbox and containers: make them on node %s, with crictl runp, create "+
		"and start, or by its kubelet: %w", sp.Pod.Namespace, sp.Pod.Name, node, errdefs.ErrUnavailable)
}
