package bundle

import (
	"fmt"
	"path"
	"slices"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// refused says that a field is there which a VM cannot honour.
func refused(field, why string) error {
	return fmt.Errorf("%s: %s: %w", field, why, errdefs.ErrNotImplemented)
}

type rule struct {
	set        bool
	field, why string
}

func firstRefused(rules []rule) error {
	for _, r := range rules {
		if r.set {
			return refused(r.field, r.why)
		}
	}
	return nil
}

func refusePlatforms(oci *specs.Spec) error {
	return firstRefused([]rule{
		{oci.Windows != nil, "windows", "only Linux containers are run from an OCI spec"},
		{oci.Solaris != nil, "solaris", "only Linux containers are run from an OCI spec"},
		{oci.ZOS != nil, "zos", "only Linux containers are run from an OCI spec"},
		{oci.FreeBSD != nil, "freebsd", "only Linux containers are run from an OCI spec"},
		{oci.VM != nil, "vm", "the node's configuration names kernel and VMM"},
	})
}

func refuseProcess(oci *specs.Spec) error {
	p := oci.Process
	if p == nil || len(p.Args) == 0 {
		image := "the image"
		if name := oci.Annotations[Prefix+"image"]; name != "" {
			image = "image " + name
		}
		return fmt.Errorf("process.args: %s has no entrypoint and the task names no command: %w", image, errdefs.ErrInvalidArgument)
	}
	if !path.IsAbs(p.Cwd) {
		return fmt.Errorf("process.cwd: %q is not an absolute path: %w", p.Cwd, errdefs.ErrInvalidArgument)
	}
	return firstRefused([]rule{
		{p.Scheduler != nil, "process.scheduler", "scheduling classes are not passed to the guest"},
		{p.IOPriority != nil, "process.ioPriority", "I/O priorities are not passed to the guest"},
		{p.ExecCPUAffinity != nil, "process.execCPUAffinity", "it numbers the host's CPUs"},
		{p.CommandLine != "", "process.commandLine", "it is for Windows"},
	})
}

// hostDevices are made by every Linux guest; a spec may name them.
var hostDevices = []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"}

func refuseLinux(oci *specs.Spec) error {
	if oci.Linux == nil {
		oci.Linux = new(specs.Linux)
	}
	l := oci.Linux
	for _, d := range l.Devices {
		if !slices.Contains(hostDevices, d.Path) {
			return refused("linux.devices "+d.Path, "a device of the host is not passed to a VM")
		}
	}
	l.Devices = nil
	return firstRefused([]rule{
		{len(l.UIDMappings) > 0, "linux.uidMappings", "user namespaces are not made in the guest"},
		{len(l.GIDMappings) > 0, "linux.gidMappings", "user namespaces are not made in the guest"},
		{len(l.TimeOffsets) > 0, "linux.timeOffsets", "time namespaces are not made in the guest"},
		{len(l.NetDevices) > 0, "linux.netDevices", "a device of the host is not passed to a VM"},
		{l.IntelRdt != nil, "linux.intelRdt", "it is for processes of the host"},
		{l.MemoryPolicy != nil, "linux.memoryPolicy", "it numbers the host's memory nodes"},
		{l.Personality != nil && l.Personality.Domain != specs.PerLinux, "linux.personality", "only LINUX is run"},
	})
}

func refuseResources(oci *specs.Spec) error {
	r := oci.Linux.Resources
	if r == nil {
		return nil
	}
	rules := []rule{
		{len(r.Rdma) > 0, "linux.resources.rdma", "a VM has no RDMA device of the host"},
		{r.Network != nil && (r.Network.ClassID != nil || len(r.Network.Priorities) > 0), "linux.resources.network", "the guest's packets carry no class of the host"},
	}
	for _, h := range r.HugepageLimits {
		rules = append(rules, rule{h.Limit != 0, "linux.resources.hugepageLimits " + h.Pagesize, "a VM has no huge pages of the host"})
	}
	if b := r.BlockIO; b != nil {
		n := len(b.WeightDevice) + len(b.ThrottleReadBpsDevice) + len(b.ThrottleWriteBpsDevice) + len(b.ThrottleReadIOPSDevice) + len(b.ThrottleWriteIOPSDevice)
		rules = append(rules, rule{n > 0, "linux.resources.blockIO", "it names devices of the host"})
	}
	if c := r.CPU; c != nil {
		rules = append(rules, rule{(c.RealtimeRuntime != nil && *c.RealtimeRuntime != 0) || (c.RealtimePeriod != nil && *c.RealtimePeriod != 0),
			"linux.resources.cpu.realtime*", "the guest has cgroup v2, which knows none"})
	}
	return firstRefused(rules)
}

// readNamespaces keeps the network namespace's path and refuses to join another
// container: the namespaces of a VM are those of its own kernel.
func (b *Bundle) readNamespaces(oci *specs.Spec) error {
	b.HostNetwork = true
	present := make(map[specs.LinuxNamespaceType]bool)
	for i, ns := range oci.Linux.Namespaces {
		present[ns.Type] = true
		field := fmt.Sprintf("linux.namespaces %s", ns.Type)
		switch ns.Type {
		case specs.NetworkNamespace:
			b.HostNetwork, b.NetNS = false, ns.Path
			oci.Linux.Namespaces[i].Path = ""
		case specs.PIDNamespace, specs.IPCNamespace, specs.UTSNamespace, specs.MountNamespace, specs.CgroupNamespace:
			if ns.Path != "" {
				return refused(field, fmt.Sprintf("a VM cannot join %s, the namespace of a process of the host", ns.Path))
			}
		case specs.UserNamespace:
			return refused(field, "user namespaces are not made in the guest")
		default:
			return refused(field, "it is not made in the guest")
		}
	}
	for _, t := range []specs.LinuxNamespaceType{specs.PIDNamespace, specs.IPCNamespace, specs.UTSNamespace} {
		if !present[t] {
			b.note("the host's %s namespace was asked for; the container gets the guest's", t)
		}
	}
	return nil
}
