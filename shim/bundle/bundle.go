// Package bundle reads the OCI bundle that containerd made for a task and splits it. What
// describes the VM goes into a spec.Spec without host paths. What only this host honours stays
// here: hooks, network namespace, cgroup path, sources of bind mounts. Whatever a VM cannot
// honour is refused by name, so that nothing is dropped unseen.
package bundle

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/guest/client/seccomp"
	"godwit.dev/godwit/guest/stage"
)

// Bundle of one task.
type Bundle struct {
	Dir       string
	Namespace string // containerd's
	ID        string // the container's
	// Spec has size, annotations and container or pod filled; UID, VMM, kernel, disks and
	// NICs are the shim's to add. No host path is in it. It is nil for a container of a pod.
	Spec *spec.Spec
	// NetNS is the path of the network namespace, empty where the task brings none.
	NetNS string
	// HostNetwork: the task asked for the host's network, not for a namespace.
	HostNetwork bool
	CgroupsPath string // as given, for the host's cgroup of the task
	VMM         string // "qemu", "cloud-hypervisor", or empty: the config decides
	// WritableSize of the writable disk in bytes.
	WritableSize int64
	// Restore is one of config.RestoreModes, or empty: the config decides.
	Restore string
	Hooks   Hooks
	// Left is the snapshot that the container's VM left in, as godwitd marked it.
	Left string
	// Container is what godwitd calls the container that it made without a root file system; empty: it made none.
	Container string
	// Annotations of the container, for the state that hooks get.
	Annotations map[string]string
	// Copies are the bind mounts; their content is read when the guest boots, because a
	// createRuntime hook may still write it.
	Copies Copies
	// VMDisk is what to boot where the image is a VM disk; nil for one that is run as a
	// container.
	VMDisk *VMDisk
	// Member is set for a container of a pod. Such a bundle describes no VM.
	Member *Member
	copied int64 // bytes of them that go to the writable disk
	// CPUs and Mems are lists of this host's CPUs and memory nodes, for the host's cgroup of the task. Those of a
	// container of a pod are noted.
	CPUs, Mems string
	// Notes say what was accepted and is not applied as it would be in a container on
	// the host. The shim logs them once.
	Notes []string
}

// Load reads dir/config.json. Errors of class InvalidArgument and NotImplemented name
// the field of config.json and the remedy. carries says whether the image is a VM disk by
// what is in it; without it, annotations alone decide.
func Load(dir, namespace, id string, cfg *config.Config, carries func() (bool, error)) (*Bundle, error) {
	oci, err := readConfig(dir)
	if err != nil {
		return nil, err
	}
	return take(oci, dir, namespace, id, cfg, carries)
}

// LoadMember is Load of a container whose pod has that bundle.
func LoadMember(dir, namespace, id string, cfg *config.Config, pod string) (*Bundle, error) {
	oci, err := readConfig(dir)
	if err != nil {
		return nil, err
	}
	if err := mountSandboxFiles(oci, pod); err != nil {
		return nil, fmt.Errorf("read bundle of %s: %w", id, err)
	}
	return take(oci, dir, namespace, id, cfg, nil)
}

func readConfig(dir string) (*specs.Spec, error) {
	path := filepath.Join(dir, "config.json")
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read bundle: %w", err)
	}
	oci := new(specs.Spec)
	if err := json.Unmarshal(data, oci); err != nil {
		return nil, fmt.Errorf("read %s: %w: %w", path, err, errdefs.ErrInvalidArgument)
	}
	return oci, nil
}

func take(oci *specs.Spec, dir, namespace, id string, cfg *config.Config, carries func() (bool, error)) (*Bundle,
	error) {
	b, err := parse(oci, namespace, id, cfg, carries)
	if err != nil {
		return nil, fmt.Errorf("read bundle of %s: %w", id, err)
	}
	b.Dir = dir
	return b, nil
}

// parse takes oci apart; oci becomes part of the result.
func parse(oci *specs.Spec, namespace, id string, cfg *config.Config, carries func() (bool, error)) (*Bundle, error) {
	b := &Bundle{Namespace: namespace, ID: id, Annotations: oci.Annotations, Left: oci.Annotations[spec.AnnotationDigest],
		Container: oci.Annotations[spec.AnnotationContainer]}
	c, err := readCRI(oci.Annotations)
	if err != nil {
		return nil, err
	}
	own, err := readAnnotations(oci.Annotations)
	if err != nil {
		return nil, err
	}
	b.VMM, b.Restore = own.vmm, own.restore
	if b.WritableSize = own.writableSize; b.WritableSize == 0 {
		b.WritableSize = int64(cfg.VM.WritableSize)
	}
	switch {
	case c.role == roleAlone && own.honoured[spec.AnnotationVM] != "":
		err = fmt.Errorf("annotation %s: it names the VM of a pod. The VM of any other container has the container's id and "+
			"name: leave it out: %w", spec.AnnotationVM, errdefs.ErrInvalidArgument)
	case c.role == roleAlone:
		err = b.readAlone(oci, own, cfg, carries)
	case own.disk.asks():
		err = refused("annotations of VM disks ("+Prefix+"disk and others)", "a pod runs container images: run a VM disk by "+
			"ctr, nerdctl or godwit run")
	case c.role == roleSandbox:
		err = b.readSandbox(oci, c, own, cfg)
	default:
		err = b.readMember(oci, c, own)
	}
	return b, err
}

// readAlone reads a task that has a VM of its own and no pod.
func (b *Bundle) readAlone(oci *specs.Spec, own annotations, cfg *config.Config, carries func() (bool, error)) error {
	var err error
	if b.VMDisk, err = readVMDisk(own, carries); err != nil {
		return err
	}
	checks := []func(*specs.Spec) error{refusePlatforms, refuseProcess, refuseLinux, refuseLabels, refuseResources}
	if b.VMDisk != nil {
		checks = []func(*specs.Spec) error{refusePlatforms, refuseLinux, refuseLabels, refuseResources, b.refuseForDisk}
	}
	for _, check := range checks {
		if err := check(oci); err != nil {
			return err
		}
	}
	if b.Hooks, err = readHooks(oci.Hooks); err != nil {
		return err
	}
	if err := b.readNamespaces(oci); err != nil {
		return err
	}
	overhead := uint64(guestOverhead)
	if b.VMDisk != nil {
		overhead, err = 0, b.readDiskMounts(oci)
	} else {
		err = b.readMounts(oci, own.copyVolumes)
	}
	if err != nil {
		return err
	}
	memory, err := memorySize(own.memory, overhead, oci, cfg)
	if err != nil {
		return err
	}
	vcpus, err := vcpuCount(own.vcpus, oci)
	if err != nil {
		return err
	}
	b.CgroupsPath = oci.Linux.CgroupsPath
	b.stripHost(oci)
	b.Spec = &spec.Spec{
		Namespace: b.Namespace, ID: b.ID,
		Memory: memory, VCPUs: vcpus, Annotations: own.honoured, Recycle: own.recycle,
		Container: &spec.Container{OCI: oci, Image: own.image},
	}
	b.OwnedIn(b.Spec.Container.Users())
	b.Spec.Version = b.Spec.Schema()
	if v := b.VMDisk; v != nil {
		b.Spec.VMDisk = &spec.VMDisk{OS: v.OS, Boot: v.Boot, Path: v.Path}
		b.Spec.Recycle = b.Spec.Recycle || v.OS == spec.OSWindows
		return nil
	}
	return b.checkProcess(oci)
}

// invalid says that a field has a value that no runtime could take.
func invalid(field, format string, args ...any) error {
	return fmt.Errorf("%s: %s: %w", field, fmt.Sprintf(format, args...), errdefs.ErrInvalidArgument)
}

// checkProcess is about what the guest's agent will be asked to do.
func (b *Bundle) checkProcess(oci *specs.Spec) error {
	if err := stage.CheckProcess(oci.Process); err != nil {
		return err
	}
	if p := oci.Linux.Seccomp; p != nil {
		f, err := seccomp.Compile(p)
		if err != nil {
			return err
		}
		b.Notes = append(b.Notes, f.Notes...)
	}
	return nil
}

// stripHost removes what means something on this host alone, so that the Spec fits
// every node, and notes what a VM replaces.
func (b *Bundle) stripHost(oci *specs.Spec) {
	oci.Hooks = nil
	oci.Root = &specs.Root{Path: "rootfs", Readonly: oci.Root != nil && oci.Root.Readonly}
	oci.Annotations = b.ownAnnotations()
	l, p := oci.Linux, oci.Process
	l.CgroupsPath = ""
	for _, note := range stripLabels(p) {
		b.addNote("%s", note)
	}
	if l.MountLabel != "" {
		b.addNote("linux.mountLabel is not applied: it would label files of the host")
		l.MountLabel = ""
	}
	if l.Resources == nil {
		return
	}
	if len(l.Resources.Devices) > 0 {
		b.addNote("device rules are not applied: the guest has the VM's own devices only")
	}
	if c := l.Resources.CPU; c != nil { // the guest has other CPUs, and so has another node
		if b.Member != nil && (c.Cpus != "" || c.Mems != "") { // the VM is that of all containers of the pod
			b.addNote("cpuset is not applied: it numbers the host's CPUs, and all containers of the pod share one VM")
		}
		b.CPUs, b.Mems = c.Cpus, c.Mems
		c.Cpus, c.Mems = "", ""
	}
	l.Resources.Devices = nil
}

func (b *Bundle) addNote(format string, args ...any) {
	b.Notes = append(b.Notes, fmt.Sprintf(format, args...))
}
