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
// not look at what others do to it. Where it is not known whether it is that of a pod, nothing is done. A node whose
// containerd is another one has no such VM here.
func (c *Client) refusePod(ctx context.Context, vm *nodev1.VM, remedy string) error {
	if _, err := c.containerdSocket(); errdefs.IsFailedPrecondition(err) {
		return nil // the call itself asks there, or says that it cannot
	}
	ctr, err := c.Containerd()
	if err != nil {
		return err
	}
	switch container, err := c.find(within(ctx, vm), ctr, vm); {
	case errdefs.IsNotFound(err):
		if f, err := c.sandbox(ctx, vm); f == nil || err != nil {
			return err
		}
	case err != nil:
		return c.containerdError("look for VM "+c.name(vm), err)
	default:
		info, err := container.Info(within(ctx, vm), containerd.WithoutRefreshedMetadata)
		if err != nil {
			return c.containerdError("read the labels of VM "+c.name(vm), err)
		}
		if !record.IsSandbox(info.Labels) {
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
