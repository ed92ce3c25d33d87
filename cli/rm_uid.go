package cli

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

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
