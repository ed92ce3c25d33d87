package client

import (
	"context"
	"fmt"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
)

// refusePod refuses what is asked of the VM of a pod, and names what CRI has for it. CRI makes and ends a pod, and does
// not look at what others do to it. Where containerd cannot be asked, the call itself says so.
func (c *Client) refusePod(ctx context.Context, vm *nodev1.VM, remedy string) error {
	ctr, err := c.Containerd()
	if err != nil {
		return nil
	}
	switch container, err := c.find(within(ctx, vm), ctr, vm); {
	case errdefs.IsNotFound(err):
		if f, err := c.sandbox(ctx, vm); f == nil || err != nil {
			return nil
		}
	case err != nil:
		return nil
	default:
		info, err := container.Info(within(ctx, vm), containerd.WithoutRefreshedMetadata)
		if err != nil || !record.IsSandbox(info.Labels) {
			return nil
		}
	}
	return &Problem{What: c.name(vm) + " is the VM of a pod, which is CRI's.",
		Remedy: fmt.Sprintf("Use crictl for it: %s.", remedy), Cause: errdefs.ErrFailedPrecondition}
}

// What CRI has in the place of verbs.
const (
	podExec   = "crictl exec CONTAINER, for one of those that crictl ps shows"
	podAttach = "crictl attach CONTAINER, for one of those that crictl ps shows"
	podLogs   = "crictl logs CONTAINER, for one of those that crictl ps shows"
	podStop   = "crictl stopp, with the pod's id"
	podRm     = "crictl rmp, with the pod's id"
	podStart  = "crictl runp makes another one, and a kubelet does so by itself"
)
