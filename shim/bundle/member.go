package bundle

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"godwit.dev/godwit/api/spec"
)

// Member is a container of a CRI pod, as its bundle has it. The shim gives it its guest id, and gives
// each volume an id that the containers of the pod share.
type Member struct {
	Sandbox string // containerd's id of the pod's sandbox
	// Holder is the process whose ipc, uts and network namespaces the container is to have: that of
	// the sandbox's task.
	Holder int
	// PIDPath is "/proc/PID/ns/pid" of the task whose pid namespace is joined: the sandbox's, or that of
	// another container of the pod. Empty: the container has one of its own. PIDHolder is that PID.
	PIDPath   string
	PIDHolder int
	// Container has no guest id, no layers, and Mounts without ids of volumes: Volumes has one entry for
	// each of them, in the same order.
	Container spec.Member
	Volumes   []Volume
	// Devices has one entry for each of Container.Devices, in the same order.
	Devices []NodeDevice
	// Termination is the file that the container writes its last words to. Its content goes back into the
	// file of the host that was mounted there. Empty Source: none.
	Termination Copy
}

// Volume is one that a container of a pod mounts.
type Volume struct {
	Source string // of the host: containers that name the same source share the volume
	spec.Volume
	// Of a volume of kind spec.VolumeMounted: the device, and the file system on it.
	Device     *NodeDevice
	Filesystem string
}

// readMember reads a container of a pod, which has no VM of its own.
func (b *Bundle) readMember(oci *specs.Spec, c cri, own annotations) error {
	block := takeBlockDevices(oci)
	for _, check := range []func(*specs.Spec) error{refusePlatforms, refuseProcess, refuseLinux, refuseResources} {
		if err := check(oci); err != nil {
			return err
		}
	}
	var err error
	if b.Hooks, err = readHooks(oci.Hooks); err != nil {
		return err
	}
	m := &Member{Sandbox: c.sandbox}
	if err := m.readDevices(block, oci.Linux.Resources); err != nil {
		return err
	}
	if err := m.readNamespaces(oci); err != nil {
		return err
	}
	b.Member = m
	if err := b.readPodMounts(oci, c, own.copyVolumes); err != nil {
		return err
	}
	image := cmp.Or(own.image, oci.Annotations[criImage])
	b.stripHost(oci)
	m.Container.Name, m.Container.OCI, m.Container.Image = c.container, oci, image
	return b.checkProcess(oci)
}

// ofProcess is how CRI names the namespaces of a task.
var ofProcess = regexp.MustCompile(`^/proc/([1-9][0-9]{0,9})/ns/(net|ipc|uts|pid|user)$`)

// inProcess is what ofProcess has for each kind of namespace that a pod's containers may share.
var inProcess = map[specs.LinuxNamespaceType]string{specs.NetworkNamespace: "net", specs.IPCNamespace: "ipc",
	specs.UTSNamespace: "uts", specs.PIDNamespace: "pid"}

// readNamespaces takes the paths out of oci: the guest has the pod's namespaces.
func (m *Member) readNamespaces(oci *specs.Spec) error {
	present := make(map[specs.LinuxNamespaceType]bool)
	for i := range oci.Linux.Namespaces {
		ns := &oci.Linux.Namespaces[i]
		if err := m.readNamespace(ns, present[ns.Type]); err != nil {
			return err
		}
		present[ns.Type], ns.Path = true, ""
	}
	return refusePodNamespaces(present)
}

func (m *Member) readNamespace(ns *specs.LinuxNamespace, twice bool) error {
	field := fmt.Sprintf("linux.namespaces %s", ns.Type)
	if twice {
		return invalid(field, "it is there twice")
	}
	switch ns.Type {
	case specs.MountNamespace, specs.CgroupNamespace:
		if ns.Path != "" {
			return refused(field, fmt.Sprintf("a VM cannot join %s, the namespace of a process of the host", ns.Path))
		}
		return nil
	case specs.PIDNamespace:
		if ns.Path == "" {
			return nil
		}
	}
	name, shared := inProcess[ns.Type]
	if ns.Type == specs.UserNamespace {
		name, shared = "user", true
	}
	if !shared {
		return refused(field, "it is not made in the guest")
	}
	found := ofProcess.FindStringSubmatch(ns.Path)
	if found == nil || found[2] != name {
		return refused(field, fmt.Sprintf("%q is not /proc/PID/ns/%s of a task of the pod: containers of a pod share what "+
			"the pod has, and nothing of the host", ns.Path, name))
	}
	pid, err := strconv.Atoi(found[1])
	if err != nil {
		return invalid(field, "%s: %v", ns.Path, err)
	}
	if ns.Type == specs.PIDNamespace {
		m.PIDPath, m.PIDHolder = ns.Path, pid
		return nil
	}
	if m.Holder != 0 && m.Holder != pid {
		return refused(field, fmt.Sprintf("%s is of another process than the other namespaces: a container is in one pod",
			ns.Path))
	}
	m.Holder = pid
	return nil
}
