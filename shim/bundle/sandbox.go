package bundle

import (
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/api/spec"
)

// forContainers are the annotations that a container of a pod is asked for. CRI gives the annotations of
// a pod to each of its containers too.
var forContainers = []string{spec.AnnotationReady, spec.AnnotationReadyTimeout, spec.AnnotationNotify,
	Prefix + "volumes", Prefix + "image"}

// readSandbox reads a pod: the VM. Neither process nor mounts nor root file system of the sandbox are looked
// at, because the pause image is not run.
func (b *Bundle) readSandbox(oci *specs.Spec, c cri, own annotations, cfg *config.Config) error {
	for _, check := range []func(*specs.Spec) error{refusePlatforms, refuseLinux, refuseResources} {
		if err := check(oci); err != nil {
			return err
		}
	}
	var err error
	if b.Hooks, err = readHooks(oci.Hooks); err != nil {
		return err
	}
	if err := b.readNamespaces(oci); err != nil {
		return err
	}
	limits, err := criLimits(oci.Annotations)
	if err != nil {
		return err
	}
	memory, err := memorySize(own.memory, guestOverhead, limits, cfg)
	if err != nil {
		return fmt.Errorf("annotation %s: %w", criMemory, err)
	}
	vcpus, err := vcpuCount(own.vcpus, limits)
	if err != nil {
		return fmt.Errorf("annotation %s: %w", criQuota, err)
	}
	name, err := vmName(oci.Annotations, b.ID)
	if err != nil {
		return err
	}
	pod := &spec.Pod{Namespace: c.namespace, Name: c.name, UID: c.uid, Hostname: oci.Hostname,
		Sysctl: withDomain(oci.Linux.Sysctl, oci.Domainname), Users: spec.UsersOf(oci)}
	if pod.Hostname == "" { // CRI then writes the host's into /etc/hostname
		if pod.Hostname, err = os.Hostname(); err != nil {
			return fmt.Errorf("hostname: %w", err)
		}
	}
	b.CgroupsPath = oci.Linux.CgroupsPath
	b.Spec = &spec.Spec{Namespace: b.Namespace, ID: name, Memory: memory, VCPUs: vcpus, Recycle: own.recycle, Pod: pod,
		Annotations: maps.Clone(own.honoured)}
	for _, key := range forContainers {
		delete(b.Spec.Annotations, key)
	}
	b.Spec.Version = b.Spec.Schema()
	return nil
}

// hostOf says why a pod cannot have a namespace of the host.
func hostOf(field, what string) string {
	return fmt.Sprintf("the host's %s was asked for (host%s of a pod), and a VM has its own kernel's: leave it out", what,
		field)
}

// refusePodNamespaces refuses those of the host, which CRI asks for by leaving them out.
func refusePodNamespaces(present map[specs.LinuxNamespaceType]bool) error {
	return firstRefused([]rule{
		{!present[specs.NetworkNamespace], "linux.namespaces network", hostOf("Network", "network")},
		{!present[specs.PIDNamespace], "linux.namespaces pid", hostOf("PID", "pid namespace")},
		{!present[specs.IPCNamespace], "linux.namespaces ipc", hostOf("IPC", "ipc namespace")},
		{!present[specs.UTSNamespace], "linux.namespaces uts", hostOf("Network", "uts namespace")},
	})
}

// withDomain adds the NIS domain to the sysctls of a container or pod.
func withDomain(sysctl map[string]string, domain string) map[string]string {
	all := maps.Clone(sysctl)
	if domain != "" {
		if all == nil {
			all = make(map[string]string)
		}
		all["kernel.domainname"] = domain
	}
	return all
}

// podOnly are the annotations that the VM of a pod is made by.
func podOnly(key string) bool { return !slices.Contains(forContainers, key) }

// BelongsTo reports an error where the container is not one of the pod that vm was made for, with that sandbox. It may
// not ask for what only a pod can have.
func (b *Bundle) BelongsTo(vm *spec.Spec, sandbox string) error {
	m := b.Member
	if m == nil || vm.Pod == nil || m.Sandbox != sandbox {
		return fmt.Errorf("container %s: sandbox %s has no such container: %w", b.ID, sandbox, errdefs.ErrInvalidArgument)
	}
	if is := m.Container.Users(); !is.Alike(vm.Pod.Users) {
		return fmt.Errorf("linux.uidMappings and linux.gidMappings: container %s has other ids than its pod: give all "+
			"containers of a pod the same user namespace: %w", m.Container.Name, errdefs.ErrInvalidArgument)
	}
	b.OwnedIn(vm.Pod.Users)
	for key, value := range m.Container.OCI.Annotations {
		if podOnly(key) && vm.Annotations[key] != value {
			return fmt.Errorf("annotation %s: %q of container %s, but %q of its pod: the VM is the pod's, set it there only: %w",
				key, value, m.Container.Name, vm.Annotations[key], errdefs.ErrInvalidArgument)
		}
	}
	return nil
}
