package shim

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/spec"
)

// resolve asks the controller which VM the pod is. Anybody who may make a pod can write the name of any VM into it. A
// controller that knows no pods has nothing to say: there the name counts.
func (c *creation) resolve(ctx context.Context) error {
	pod := c.bundle.Spec.Pod
	if pod == nil || c.host.Pods == nil || !c.host.asks() {
		return c.stops()
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(c.host.Config.Timeouts.Daemon))
	defer cancel()
	resolved, err := c.host.Pods.Resolve(ctx, &nodev1.ResolveRequest{Pod: podOf(pod), Vm: c.vm.name()})
	switch {
	case errdefs.IsNotImplemented(err):
	case errdefs.IsPermissionDenied(err):
		return err
	case err != nil:
		return unavailable(fmt.Errorf("ask the controller which VM pod %s/%s is: %w", pod.Namespace, pod.Name, err))
	default:
		c.resolved, c.next.StopGrace = resolved, resolved.GetGraceMs()
	}
	return c.stops()
}

// stops refuses a pod that asks for more at its end than this node can do: its VM would end with it.
func (c *creation) stops() error {
	if c.bundle.Spec.Annotations[spec.AnnotationOnStop] == "" || c.next.StopGrace > 0 {
		return nil
	}
	return fmt.Errorf("annotation %s: the pod is of no VirtualMachine that the controller of this node knows, and no "+
		"other one hibernates at a stop: leave it out: %w", spec.AnnotationOnStop, errdefs.ErrFailedPrecondition)
}

// checkResolved refuses a record that is another one than that of the pod's VM, which was made again meanwhile.
func (c *creation) checkResolved() error {
	if uid := c.resolved.GetUid(); uid != "" && uid != c.record.GetUid() {
		return fmt.Errorf("create VM %s: its record has uid %s, the pod's VM has %s: %w", c.vm.id, c.record.GetUid(), uid,
			errdefs.ErrFailedPrecondition)
	}
	return nil
}

func podOf(p *spec.Pod) *nodev1.Pod {
	return &nodev1.Pod{Namespace: p.Namespace, Name: p.Name, Uid: p.UID}
}
