package bundle

import (
	"slices"

	"github.com/moby/sys/capability"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/runtime-spec/specs-go/features"

	"godwit.dev/godwit/guest/client/seccomp"
	"godwit.dev/godwit/guest/stage"
)

// ownNamespaces are those that a container in a VM gets of its own.
var ownNamespaces = []specs.LinuxNamespaceType{specs.CgroupNamespace, specs.IPCNamespace, specs.MountNamespace,
	specs.NetworkNamespace, specs.PIDNamespace, specs.UserNamespace, specs.UTSNamespace}

// Features are what a config.json may ask for, in the words of `runc features`. What is not in a
// list is refused by name.
//
// Format: features.md of the OCI runtime spec.
func Features() *features.Features {
	f := &features.Features{
		OCIVersionMin: "1.0.0", OCIVersionMax: specs.Version, MountOptions: stage.MountOptions(),
		Linux: &features.Linux{
			Cgroup:   &features.Cgroup{V1: new(bool), V2: yes(), Systemd: yes(), SystemdUser: new(bool), Rdma: new(bool)},
			Seccomp:  seccomp.Features(),
			Apparmor: &features.Apparmor{Enabled: new(bool)}, Selinux: &features.Selinux{Enabled: new(bool)},
			IntelRdt: &features.IntelRdt{Enabled: new(bool)}, NetDevices: &features.NetDevices{Enabled: new(bool)},
			MountExtensions: &features.MountExtensions{IDMap: &features.IDMap{Enabled: yes()}},
		},
	}
	for _, kind := range []HookKind{Prestart, CreateRuntime, Poststart, Poststop} {
		f.Hooks = append(f.Hooks, string(kind))
	}
	for _, n := range ownNamespaces {
		f.Linux.Namespaces = append(f.Linux.Namespaces, string(n))
	}
	for _, c := range capability.ListKnown() {
		f.Linux.Capabilities = append(f.Linux.Capabilities, stage.CapabilityName(c))
	}
	slices.Sort(f.Linux.Capabilities)
	return f
}

func yes() *bool {
	enabled := true
	return &enabled
}
