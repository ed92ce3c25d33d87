package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
)

func newPs(opts *options) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "List the VMs of the cluster, and what this node knows of its own",
		RunE: opts.onNode(func(cmd *cobra.Command, node nodev1.NodeService, _ []string) error {
			request := &nodev1.VMsRequest{Namespace: opts.namespace}
			if all {
				request.Namespace = ""
			}
			resp, err := node.VMs(cmd.Context(), request)
			if err != nil {
				return record.FromWire(err)
			}
			if opts.output == "json" {
				return printJSON(cmd.OutOrStdout(), resp)
			}
			if resp.GetWarning() != "" {
				fmt.Fprintln(cmd.ErrOrStderr(), "godwit:", resp.GetWarning())
			}
			rows := make([][]string, 0, len(resp.GetVms()))
			for _, vm := range resp.GetVms() {
				rows = append(rows, vmRow(vm))
				sayNote(cmd.ErrOrStderr(), vm)
			}
			return table(cmd.OutOrStdout(), "VM STATUS OWNER GEN RAM RESIDENT VCPUS VMM NETWORK ADDRESSES", rows)
		}),
	}
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "VMs of all namespaces")
	return cmd
}

// sayNote tells why nothing is known of a VM, what to do about one that is lost, and what a
// deletion waits for. Notes of others are for programs: they come and go with an operation.
func sayNote(out io.Writer, vm *nodev1.VMInfo) {
	name := vm.GetVm().GetNamespace() + "/" + vm.GetVm().GetId()
	if s := vm.GetStatus(); vm.GetNote() != "" && (s == "lost" || s == "unknown") {
		fmt.Fprintf(out, "godwit: VM %s is %s: %s\n", name, s, vm.GetNote())
	}
	if d := vm.GetDeletion(); record.Stuck(d) {
		fmt.Fprintf(out, "godwit: VM %s is not removed: its final snapshot has failed for good: %s\n", name, d.GetReason())
	} else if d.GetTries() > 0 {
		fmt.Fprintf(out, "godwit: VM %s is removed once its final snapshot succeeds (godwit rm --cancel %s calls it off); "+
			"try %d: %s\n", name, name, d.GetTries(), d.GetReason())
	}
}

func vmRow(vm *nodev1.VMInfo) []string {
	status := vm.GetStatus()
	if op := vm.GetOperation(); op != nil {
		status = fmt.Sprintf("%s (%s)", status, lower(op.GetPhase().String(), "PHASE_"))
	}
	if n := vm.GetCleanupPending(); n > 0 {
		status += fmt.Sprintf(", cleanup pending (%d)", n)
	}
	status += deletionText(vm.GetDeletion()) + restoreText(vm)
	return []string{
		vm.GetVm().GetNamespace() + "/" + vm.GetVm().GetId(), status, ownerName(vm.GetOwner()),
		fmt.Sprint(vm.GetGeneration()), mib(vm.GetMemory()), mib(vm.GetResident()), fmt.Sprint(vm.GetVcpus()),
		dash(vm.GetVmm()), dash(vm.GetNetwork()), dash(strings.Join(vm.GetAddresses(), ",")),
	}
}

// deletionText says where a VM's deletion after a final snapshot stands.
func deletionText(d *nodev1.Deletion) string {
	switch {
	case d == nil:
		return ""
	case record.Stuck(d):
		return ", not removed"
	case d.GetTries() > 0:
		return fmt.Sprintf(", to be removed (failed tries: %d)", d.GetTries())
	}
	return ", to be removed"
}

// restoreText says how far the restore of a VM is, and once that is over how it was made.
func restoreText(vm *nodev1.VMInfo) string {
	if r := vm.GetRestore(); r != "" {
		return ", restore: " + r
	}
	mode, reason := vm.GetRestoreMode(), strings.Join(strings.Fields(vm.GetRestoreReason()), " ")
	if mode == "" {
		return ""
	}
	if long := []rune(reason); len(long) > maxReason {
		reason = string(long[:maxReason]) + "..."
	}
	if reason != "" {
		mode += " (" + reason + ")"
	}
	return ", restored: " + mode
}

// maxReason bounds a column, in characters: -o json has all of a reason.
const maxReason = 60
