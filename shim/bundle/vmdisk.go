package bundle

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/guest/stage"
)

// VMDisk is what annotations say about the disk that an image carries. Paths are those of
// the image.
type VMDisk struct {
	Path    string // empty: the one below /disk
	Size    int64  // that the guest sees; 0: as the disk says
	OS      string
	Boot    string // of package spec
	Kernel  string // with BootKernel
	Initrd  string
	Cmdline string
}

// asks reports whether annotations ask for a VM disk, whatever the image looks like.
func (v VMDisk) asks() bool {
	return v.OS == spec.OSWindows || v.Path != "" || v.Size != 0 || v.Boot != "" || v.Kernel != "" || v.Initrd != "" ||
		v.Cmdline != ""
}

// readVMDisk says what is booted where the image is a VM disk: nil for one that is run as
// a container. carries looks at the image, and is asked only where nothing else decides.
func readVMDisk(own annotations, carries func() (bool, error)) (*VMDisk, error) {
	v := own.disk
	if !v.asks() {
		if carries == nil {
			return nil, nil
		}
		if yes, err := carries(); err != nil || !yes {
			return nil, err
		}
	}
	if v.OS == "" {
		v.OS = spec.OSLinux
	}
	conflict := func(a, b, why string) error {
		return fmt.Errorf("annotations %s%s and %s%s: %s: %w", Prefix, a, Prefix, b, why, errdefs.ErrInvalidArgument)
	}
	switch {
	case v.OS == spec.OSWindows && v.Kernel != "":
		return nil, conflict("os", "kernel", "Windows is booted by firmware")
	case v.OS == spec.OSWindows && v.Boot == spec.BootBIOS:
		return nil, conflict("os", "firmware", "Windows is booted by UEFI firmware")
	case v.Kernel != "" && v.Boot != "":
		return nil, conflict("kernel", "firmware", "a disk is booted by one of them")
	case v.Kernel == "" && v.Initrd != "":
		return nil, conflict("initrd", "kernel", "an initramfs needs a kernel")
	case v.Kernel == "" && v.Cmdline != "":
		return nil, conflict("cmdline", "kernel", "a command line needs a kernel")
	case own.writableSize != 0:
		return nil, conflict("writable-size", "disk", "a VM disk is its own writable disk: use "+Prefix+"disk-size")
	case own.copyVolumes:
		return nil, conflict("volumes", "disk", "nothing is copied into a VM disk")
	}
	switch {
	case v.Kernel != "":
		v.Boot = spec.BootKernel
	case v.Boot == "":
		v.Boot = spec.BootUEFI
	}
	return &v, nil
}

// The mounts that clients ask for by default mean nothing to a system that makes its own.
var (
	defaultMounts = []string{"/proc", "/dev", "/dev/pts", "/dev/shm", "/dev/mqueue", "/sys", "/sys/fs/cgroup", "/run"}
	defaultBinds  = []string{"/etc/hosts", "/etc/hostname", "/etc/resolv.conf"}
)

// readDiskMounts refuses every mount that somebody has asked for. The files of the
// network stay as Copies: a DHCP server tells what they hold.
func (b *Bundle) readDiskMounts(oci *specs.Spec) error {
	var kept []specs.Mount
	for _, m := range oci.Mounts {
		target := path.Clean(m.Destination)
		switch {
		case isBind(m) && slices.Contains(defaultBinds, target):
			c, err := readCopy(m, false)
			if err != nil {
				return err
			}
			b.Copies = append(b.Copies, c)
		case !isBind(m) && slices.Contains(defaultMounts, target) && slices.Contains(guestTypes, m.Type):
			kept = append(kept, m)
		default:
			return refused("mount "+m.Destination, "the system on a VM disk makes its own mounts: put the data on the disk")
		}
	}
	oci.Mounts = kept
	return nil
}

// refuseForDisk refuses what would have to be done inside the guest. What every client
// asks for of a process is ignored, and noted: there is none.
func (b *Bundle) refuseForDisk(oci *specs.Spec) error {
	if oci.Process == nil {
		oci.Process = new(specs.Process)
	}
	p, l := oci.Process, oci.Linux
	if err := stage.CheckPropagation(l.RootfsPropagation); err != nil {
		return err
	}
	const (
		why     = "nothing of a VM disk's system is set from outside"
		noAgent = "there is no agent in a VM disk that would run a command"
	)
	err := firstRefused([]rule{
		{oci.Root != nil && oci.Root.Readonly, "root.readonly", "a VM disk is written by its system"},
		{len(l.Sysctl) > 0, "linux.sysctl", why},
		{oci.Domainname != "", "domainname", why},
		{l.Personality != nil, "linux.personality", why},
		{p.CommandLine != "", "process.commandLine", why},
		{spec.UsersOf(oci) != nil, "linux.namespaces user", why},
		{oci.Annotations[spec.AnnotationReady] != "", "annotation " + spec.AnnotationReady, noAgent},
		{oci.Annotations[spec.AnnotationNotify] != "", "annotation " + spec.AnnotationNotify, noAgent},
	})
	if err != nil {
		return err
	}
	if len(p.Args) > 0 {
		b.addNote("command %q is not run, and neither user, environment, capabilities nor limits of a process are applied: "+
			"the system of the VM disk boots", strings.Join(p.Args, " "))
	}
	if l.Seccomp != nil {
		b.addNote("seccomp profile is not applied: the VM is the boundary")
		l.Seccomp = nil
	}
	return nil
}
