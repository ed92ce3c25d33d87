package bundle

import (
	"fmt"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// AppArmor and SELinux confine a process of the host. Clients set a default for every container, for which the VM is
// the stronger boundary: a default is noted. What a user has named is refused by name: nothing would enforce it.
var (
	// defaultProfiles are those of containerd's CRI plugin, of nerdctl and of docker, and the word for none.
	defaultProfiles = []string{"cri-containerd.apparmor.d", "nerdctl-default", "docker-default", "unconfined"}
	// defaultTypes are those that the library of labels gives to processes and files of containers.
	//
	// Format: selinux/contexts/lxc_contexts of the package container-selinux.
	defaultTypes = []string{"container_t", "container_init_t", "container_kvm_t", "spc_t", "container_file_t",
		"container_ro_file_t"}
)

const noEnforcement = "nothing in a VM enforces %q, and the VM is a boundary of its own: leave it out%s"

func refuseLabels(oci *specs.Spec) error {
	if label := oci.Linux.MountLabel; !defaultLabel(label) {
		return refused("linux.mountLabel", fmt.Sprintf(noEnforcement, label, ""))
	}
	return checkLabels(oci.Process)
}

// checkLabels refuses a profile or label that no client gives by itself.
func checkLabels(p *specs.Process) error {
	if p == nil {
		return nil
	}
	if name := p.ApparmorProfile; name != "" && !slices.Contains(defaultProfiles, name) {
		return refused("process.apparmorProfile", fmt.Sprintf(noEnforcement, name, ", such as --security-opt apparmor="+name))
	}
	if label := p.SelinuxLabel; !defaultLabel(label) {
		return refused("process.selinuxLabel", fmt.Sprintf(noEnforcement, label, ", such as --security-opt label="+label))
	}
	return nil
}

// defaultLabel reports whether a label user:role:type:level is one that clients give by themselves.
func defaultLabel(label string) bool {
	parts := strings.SplitN(label, ":", 4)
	return label == "" || len(parts) > 2 && slices.Contains(defaultTypes, parts[2])
}

// stripLabels takes away what would confine a process of the host.
func stripLabels(p *specs.Process) (notes []string) {
	if p.ApparmorProfile != "" {
		notes = append(notes, fmt.Sprintf("AppArmor profile %s is not applied: it would confine a process of the host",
			p.ApparmorProfile))
		p.ApparmorProfile = ""
	}
	if p.SelinuxLabel != "" {
		notes = append(notes, "SELinux label (process.selinuxLabel) is not applied: it would confine a process of the host")
		p.SelinuxLabel = ""
	}
	return notes
}
