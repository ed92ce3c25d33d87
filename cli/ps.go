package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/distribution/reference"
	"github.com/spf13/cobra"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/cli/screen"
)

func newPs(opts *options) *cobra.Command {
	var every, all bool
	flags := screen.ListFlags{}
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "List the VMs of the cluster",
		Long: "List the VMs of the cluster that run, sleep or move. With -a also those that have ended.\n" +
			"Names, images and ages are of the VMs whose containers this node has; RAM is of those that it runs.",
		RunE: opts.onNode(func(cmd *cobra.Command, node nodev1.NodeService, _ []string) error {
			request := &nodev1.VMsRequest{Namespace: opts.namespace}
			if every {
				request.Namespace = ""
			}
			resp, err := node.VMs(cmd.Context(), request)
			if err != nil {
				return record.FromWire(err)
			}
			if resp.GetWarning() != "" && !opts.machine() {
				opts.note(cmd, resp.GetWarning())
			}
			l := vmList(resp, every, all)
			if opts.table(flags) {
				for _, i := range l.Items {
					sayNote(cmd.ErrOrStderr(), i.Value.(*nodev1.VMInfo))
				}
			}
			return opts.list(cmd, l, flags)
		}),
	}
	cmd.Flags().BoolVarP(&every, "all-namespaces", "A", false, "VMs of all namespaces")
	cmd.Flags().BoolVarP(&all, "all", "a", false, "also VMs that have ended")
	flags.Add(cmd.Flags())
	return cmd
}

// vmList is what ps shows; names have the namespace with them if VMs of every one are asked for.
func vmList(resp *nodev1.VMsResponse, every, all bool) screen.List {
	l := screen.List{
		Columns: []screen.Column{{Title: "NAME", Keep: true}, {Title: "IMAGE", Spare: true}, {Title: "AGE", Spare: true},
			{Title: "STATE", Least: 10},
			{Title: "NODE"}, {Title: "MEMORY", Right: true}, {Title: "USED", Right: true, Wide: true},
			{Title: "VCPUS", Right: true, Wide: true}, {Title: "VMM", Wide: true}, {Title: "NETWORK", Wide: true},
			{Title: "ADDRESSES", Wide: true}, {Title: "RESTORED", Wide: true}, {Title: "SNAPSHOT", Wide: true},
			{Title: "ID", Wide: true}},
		Whole: func(left []screen.Item) any {
			resp.Vms = screen.Values[*nodev1.VMInfo](left)
			return resp
		},
	}
	for _, vm := range resp.GetVms() {
		if !all && ended(vm) {
			continue
		}
		id := vm.GetVm().GetId()
		if every {
			id = fullName(vm.GetVm())
		}
		l.Items = append(l.Items, screen.Item{Value: vm, Name: fullName(vm.GetVm()), ID: id, Row: vmRow(vm, every),
			Keys: map[string]string{"name": vmName(vm), "id": vm.GetVm().GetId(), "namespace": vm.GetVm().GetNamespace(),
				"state": stateWord(vm)}})
	}
	return l
}

// ended reports whether nothing of a VM is left but what is written down of it.
func ended(vm *nodev1.VMInfo) bool {
	s := vm.GetStatus()
	return (s == "stopped" || s == "removed") && vm.GetDeletion() == nil
}

// sayNote tells why nothing is known of a VM, what to do about one that is lost, and what a
// deletion waits for. It also says why a journal is not written. Notes of others are for programs: they come and go
// with an operation.
func sayNote(out io.Writer, vm *nodev1.VMInfo) {
	name := fullName(vm.GetVm())
	if s := vm.GetStatus(); vm.GetNote() != "" && (s == "lost" || s == "unknown") {
		_ = tell(out, "godwit: VM %s is %s: %s\n", name, s, vm.GetNote())
	}
	if why := vm.GetUnwritten(); why != "" {
		_ = tell(out, "godwit: VM %s: its node's disk has an older journal of it; make room below state_dir: %s\n",
			name, why)
	}
	if d := vm.GetDeletion(); record.Stuck(d) {
		_ = tell(out, "godwit: VM %s is not removed: its final snapshot has failed for good: %s\n", name, d.GetReason())
	} else if d.GetTries() > 0 {
		_ = tell(out, "godwit: VM %s is removed once its final snapshot succeeds (godwit rm --cancel %s calls it off); "+
			"try %d: %s\n", name, name, d.GetTries(), d.GetReason())
	}
}

func vmRow(vm *nodev1.VMInfo, every bool) []string {
	name := vmName(vm)
	if every {
		name = vm.GetVm().GetNamespace() + "/" + name
	}
	return []string{
		name, screen.Dash(imageText(vm)), screen.Since(vm.GetCreatedUnixNano()), stateText(vm),
		screen.Dash(vm.GetNode()), screen.Bytes(vm.GetMemory()), screen.Bytes(vm.GetResident()), count(vm.GetVcpus()),
		screen.Dash(vm.GetVmm()), screen.Dash(vm.GetNetwork()), screen.Dash(strings.Join(vm.GetAddresses(), ",")),
		restoreText(vm), screen.Dash(vm.GetOwner().GetDigest()), vm.GetVm().GetId(),
	}
}

// vmName is the VM's name, its pod's, or as much of an id that a program has drawn as docker shows.
func vmName(vm *nodev1.VMInfo) string {
	id := vm.GetVm().GetId()
	switch {
	case vm.GetPod() != "":
		return vm.GetPod()
	case vm.GetName() != "":
		return vm.GetName()
	case len(id) == 64 && strings.Trim(id, "0123456789abcdef") == "":
		return id[:12]
	}
	return id
}

// imageText is the image of a VM; a pod's containers have one each.
func imageText(vm *nodev1.VMInfo) string {
	switch n := vm.GetContainers(); {
	case vm.GetPod() == "":
		return shortImage(vm.GetImage())
	case n == 1:
		return "1 container"
	default:
		return fmt.Sprintf("%d containers", n)
	}
}

// shortImage leaves out what docker does: the registry that everybody means, and the digest after a tag.
func shortImage(image string) string {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return image
	}
	if tagged, ok := named.(reference.Tagged); ok {
		return reference.FamiliarName(named) + ":" + tagged.Tag()
	}
	return reference.FamiliarString(named)
}

// count is a number, and a dash for none.
func count(n uint32) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}
