package cli

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// onVMOrUID is onVM of a verb whose argument is a uid if byUID is set.
func (o *options) onVMOrUID(byUID *bool, do func(*cobra.Command, nodev1.NodeService, *nodev1.VM) error,
) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if !*byUID {
			return o.onVM(do)(cmd, args)
		}
		return o.onNode(func(cmd *cobra.Command, node nodev1.NodeService, args []string) error {
			vm, err := vmOfUID(cmd.Context(), node, args[0])
			if err != nil {
				return err
			}
			return do(cmd, node, vm)
		})(cmd, args)
	}
}

// vmOfUID finds the VM of a uid: builds before took names that no command line can say, such as one
// with a slash. A list that is cut short does not prove that there is none.
func vmOfUID(ctx context.Context, node nodev1.NodeService, uid string) (*nodev1.VM, error) {
	resp, err := node.VMs(ctx, &nodev1.VMsRequest{})
	if err != nil {
		return nil, record.FromWire(err)
	}
	for _, info := range resp.GetVms() {
		if info.GetUid() == uid && info.GetStatus() != "removed" { // a removed one has pending deletions, and has no record
			return info.GetVm(), nil
		}
	}
	if resp.GetWarning() != "" {
		return nil, fmt.Errorf("VM of uid %s: it is not in what could be listed: %s: %w", uid, resp.GetWarning(),
			errdefs.ErrUnavailable)
	}
	return nil, fmt.Errorf("VM of uid %s: no VM has it (godwit ps -o json): %w", uid, errdefs.ErrNotFound)
}
