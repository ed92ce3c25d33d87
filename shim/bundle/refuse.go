package bundle

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"godwit.dev/godwit/guest/stage"
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
		if name := cmp.Or(oci.Annotations[Prefix+"image"], oci.Annotations[criImage]); name != "" {
			image = "image " + name
		}
		return fmt.Errorf("process.args: %s has no entrypoint and the task names no command: %w", image,
			errdefs.ErrInvalidArgument)
	}
	return nil
}

func refuseLinux(oci *specs.Spec) error {
	if oci.Linux == nil {
		oci.Linux = new(specs.Linux)
	}
	l := oci.Linux
	if v := oci.Version; v != "" && !strings.HasPrefix(v, "1.") {
		return fmt.Errorf("ociVersion: %q: this build reads versions 1.x: %w", v, errdefs.ErrInvalidArgument)
	}
	for _, d := range l.Devices {
		if guestDevice(d) {
			continue
		}
		remedy := "with --privileged add --security-opt privileged-without-host-devices"
		if isPod(oci) {
			remedy = "for a privileged container set privileged_without_host_devices = true of the runtime in containerd's " +
				"configuration"
		}
		return refused("linux.devices "+d.Path, "a device of the host is not passed to a VM, whose own have mode 0666 and "+
			"belong to root: leave it out, and "+remedy)
	}
	l.Devices = nil
	if err := checkUsers(oci); err != nil {
		return err
	}
	if err := stage.CheckPropagation(l.RootfsPropagation); err != nil {
		return err
	}
	if _, err := personality(l.Personality); err != nil {
		return err
	}
	return firstRefused([]rule{
		{len(l.TimeOffsets) > 0, "linux.timeOffsets", "time namespaces are not made in the guest"},
		{len(l.NetDevices) > 0, "linux.netDevices", "a device of the host is not passed to a VM"},
		{l.IntelRdt != nil, "linux.intelRdt", "it is for processes of the host"},
		{l.MemoryPolicy != nil, "linux.memoryPolicy", "it numbers the host's memory nodes"},
	})
}

// guestDevices are made by every guest; a spec may name them.
var guestDevices = map[string][2]int64{
	"/dev/null": {1, 3}, "/dev/zero": {1, 5}, "/dev/full": {1, 7}, "/dev/random": {1, 8}, "/dev/urandom": {1, 9},
	"/dev/tty": {5, 0},
}

// guestDevice reports whether the guest's device of that name is what d describes.
func guestDevice(d specs.LinuxDevice) bool {
	n, ok := guestDevices[d.Path]
	return ok && (d.Type == "c" || d.Type == "u") && d.Major == n[0] && d.Minor == n[1] &&
		(d.FileMode == nil || d.FileMode.Perm() == 0o666) && (d.UID == nil || *d.UID == 0) && (d.GID == nil || *d.GID == 0)
}

const perLinux32 = 8

// personality is what personality(2) takes.
func personality(p *specs.LinuxPersonality) (uint64, error) {
	switch {
	case p == nil:
		return 0, nil
	case len(p.Flags) > 0:
		return 0, refused("linux.personality.flags", "there are none that it could be")
	case p.Domain == specs.PerLinux:
		return 0, nil
	case p.Domain == specs.PerLinux32:
		return perLinux32, nil
	}
	return 0, fmt.Errorf("linux.personality.domain: %q is not LINUX or LINUX32: %w", p.Domain, errdefs.ErrInvalidArgument)
}

func refuseResources(oci *specs.Spec) error {
	r := oci.Linux.Resources
	if r == nil {
		return nil
	}
	rules := []rule{
		{len(r.Rdma) > 0, "linux.resources.rdma", "a VM has no RDMA device of the host"},
		{r.Network != nil && r.Network.ClassID != nil, "linux.resources.network.classID",
			"the guest's packets carry no class of the host"},
		{r.Network != nil && len(r.Network.Priorities) > 0, "linux.resources.network.priorities",
			"the guest's packets carry no priority of the host"},
	}
	for _, h := range r.HugepageLimits {
		rules = append(rules, rule{h.Limit != 0, "linux.resources.hugepageLimits " + h.Pagesize,
			"a VM has no huge pages of the host"})
	}
	if b := r.BlockIO; b != nil {
		const device, alone = "it names a device of the host",
			"a VM's disks are its own: there is no other user to weigh them against"
		rules = append(rules,
			rule{positive(b.Weight), "linux.resources.blockIO.weight", alone},
			rule{positive(b.LeafWeight), "linux.resources.blockIO.leafWeight", alone},
			rule{len(b.WeightDevice) > 0, "linux.resources.blockIO.weightDevice", device},
			rule{len(b.ThrottleReadBpsDevice) > 0, "linux.resources.blockIO.throttleReadBpsDevice", device},
			rule{len(b.ThrottleWriteBpsDevice) > 0, "linux.resources.blockIO.throttleWriteBpsDevice", device},
			rule{len(b.ThrottleReadIOPSDevice) > 0, "linux.resources.blockIO.throttleReadIOPSDevice", device},
			rule{len(b.ThrottleWriteIOPSDevice) > 0, "linux.resources.blockIO.throttleWriteIOPSDevice", device})
	}
	const unified = "the guest has cgroup v2, which knows none"
	if c := r.CPU; c != nil {
		rules = append(rules,
			rule{positive(c.RealtimeRuntime), "linux.resources.cpu.realtimeRuntime", unified},
			rule{positive(c.RealtimePeriod), "linux.resources.cpu.realtimePeriod", unified})
	}
	if m := r.Memory; m != nil {
		rules = append(rules,
			rule{positive(m.Kernel), "linux.resources.memory.kernel", unified},
			rule{positive(m.KernelTCP), "linux.resources.memory.kernelTCP", unified},
			rule{m.Swappiness != nil, "linux.resources.memory.swappiness", unified},
			rule{m.DisableOOMKiller != nil && *m.DisableOOMKiller, "linux.resources.memory.disableOOMKiller", unified},
			rule{m.UseHierarchy != nil && !*m.UseHierarchy, "linux.resources.memory.useHierarchy",
				"it is always so in cgroup v2"})
	}
	return firstRefused(rules)
}

func positive[N int64 | uint64 | uint16](n *N) bool { return n != nil && *n > 0 }

// readNamespaces keeps the network namespace's path and refuses to join another
// container: the namespaces of a VM are those of its own kernel.
func (b *Bundle) readNamespaces(oci *specs.Spec) error {
	present := make(map[specs.LinuxNamespaceType]bool)
	for i, ns := range oci.Linux.Namespaces {
		if present[ns.Type] {
			return fmt.Errorf("linux.namespaces %s: it is there twice: %w", ns.Type, errdefs.ErrInvalidArgument)
		}
		present[ns.Type] = true
		field := fmt.Sprintf("linux.namespaces %s", ns.Type)
		switch ns.Type {
		case specs.NetworkNamespace:
			b.NetNS = ns.Path
			oci.Linux.Namespaces[i].Path = ""
		case specs.PIDNamespace, specs.IPCNamespace, specs.UTSNamespace, specs.MountNamespace, specs.CgroupNamespace:
			if ns.Path != "" {
				return refused(field, fmt.Sprintf("a VM cannot join %s, the namespace of a process of the host", ns.Path))
			}
		case specs.UserNamespace:
			if ns.Path != "" && !isPod(oci) {
				return refused(field, fmt.Sprintf("a VM cannot join %s, the namespace of a process of the host: leave the path "+
					"out, and give the mappings", ns.Path))
			}
			oci.Linux.Namespaces[i].Path = "" // CRI pins the one of a pod's network
		default:
			return refused(field, "it is not made in the guest")
		}
	}
	if isPod(oci) {
		return refusePodNamespaces(present)
	}
	return b.refuseHostNamespaces(present)
}

// refuseHostNamespaces: a spec that isolates some things and leaves out others asks for
// the host's. One that isolates nothing but mounts leaves it to the runtime.
func (b *Bundle) refuseHostNamespaces(present map[specs.LinuxNamespaceType]bool) error {
	kinds := []specs.LinuxNamespaceType{specs.PIDNamespace, specs.IPCNamespace, specs.UTSNamespace, specs.NetworkNamespace}
	if !slices.ContainsFunc(kinds, func(t specs.LinuxNamespaceType) bool { return present[t] }) {
		return nil
	}
	b.HostNetwork = !present[specs.NetworkNamespace]
	for _, t := range kinds {
		if t != specs.NetworkNamespace && !present[t] {
			return refused(fmt.Sprintf("linux.namespaces %s", t),
				fmt.Sprintf("the host's was asked for, such as by --%s=host, and a VM has its own kernel's: leave it out", t))
		}
	}
	return nil
}
