package join

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/shim"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/rootfs"
	"godwit.dev/godwit/shim/vmdisk"
	"godwit.dev/godwit/vmm/cloudhypervisor"
	"godwit.dev/godwit/vmm/qemu"
)

func (d *disks) PrepareVMDisk(ctx context.Context, req shim.VMDiskRequest) (*shim.DiskSet, error) {
	if set, err := d.left(req.Namespace, req.ID, req.Container, req.Mounts); set != nil || err != nil {
		if set != nil {
			set.Path = req.Disk.Path
		}
		return set, err
	}
	firmware, nvram, err := firmwareFor(d.cfg, req.VMM, req.Disk.Boot)
	if err != nil {
		return nil, err
	}
	cache, err := rootfs.OpenCache(d.cfg.CacheDir(), int64(d.cfg.Cache.MaxSize))
	if err != nil {
		return nil, err
	}
	f, err := vmdisk.Prepare(ctx, cache, vmdisk.Request{
		Mounts: req.Mounts, Path: req.Disk.Path, Size: req.Disk.Size, Most: int64(d.cfg.VM.MaxDisk),
		Kernel: req.Disk.Kernel, Initrd: req.Disk.Initrd, Firmware: firmware, NVRAM: nvram, Dir: req.Dir,
		Kept: d.kept(req.Namespace, req.ID),
	})
	if err != nil {
		return nil, err
	}
	set := &shim.DiskSet{Path: f.Path}
	add := func(id, kind string, file vmdisk.File, writable bool) {
		if file.Path == "" {
			return
		}
		set.Disks = append(set.Disks, spec.Disk{
			ID: id, Serial: id, Type: kind, Size: file.Size, Digest: file.Digest, ReadOnly: !writable,
		})
		set.Files = append(set.Files, journal.Disk{ID: id, Path: file.Path})
	}
	add("disk", spec.TypeRaw, f.Disk, true)
	add("nvram", spec.TypeNVRAM, f.NVRAM, true)
	add("firmware", spec.TypeFirmware, f.Firmware, false)
	add("kernel", spec.TypeKernel, f.Kernel, false)
	add("initrd", spec.TypeInitrd, f.Initrd, false)
	return set, nil
}

// firmwareFor names the node's files that boot a VM disk under that VMM.
func firmwareFor(cfg *config.Config, name, boot string) (firmware, nvram string, err error) {
	const kernel = "or boot the disk with a kernel of its image (annotation godwit.dev/kernel)"
	remedy := "install Debian's package ovmf, set vmm.firmware and vmm.firmware_vars"
	hypervisor := false
	switch name {
	case qemu.Name:
	case cloudhypervisor.Name:
		hypervisor = true
	default:
		return "", "", fmt.Errorf("VMM %q: this build boots a VM disk by %s and %s: %w", name, cloudhypervisor.Name,
			qemu.Name, errdefs.ErrNotImplemented)
	}
	switch {
	case boot == spec.BootKernel:
		return "", "", nil
	case boot == spec.BootBIOS && hypervisor:
		return "", "", fmt.Errorf("godwit.dev/firmware: Cloud Hypervisor has no BIOS: use uefi or QEMU, %s: %w", kernel,
			errdefs.ErrFailedPrecondition)
	case boot == spec.BootBIOS:
		return "", "", nil
	case hypervisor && cfg.VMM.CloudHypervisorFirmware == "":
		return "", "", fmt.Errorf("this node has no firmware for Cloud Hypervisor: set vmm.cloud_hypervisor_firmware, use "+
			"QEMU, %s: %w", kernel, errdefs.ErrFailedPrecondition)
	case hypervisor:
		firmware, remedy = cfg.VMM.CloudHypervisorFirmware, "set vmm.cloud_hypervisor_firmware to a file that is there"
	case cfg.VMM.Firmware == "" || cfg.VMM.FirmwareVars == "":
		return "", "", fmt.Errorf("this node has no firmware for QEMU: set vmm.firmware and vmm.firmware_vars, %s: %w",
			kernel, errdefs.ErrFailedPrecondition)
	default:
		firmware, nvram = cfg.VMM.Firmware, cfg.VMM.FirmwareVars
	}
	for _, path := range []string{firmware, nvram} {
		if path == "" {
			continue
		}
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			return "", "", fmt.Errorf("this node has no firmware %s: %s, %s: %w", path, remedy, kernel,
				errdefs.ErrFailedPrecondition)
		} else if err != nil {
			return "", "", fmt.Errorf("firmware: %w", err)
		}
	}
	return firmware, nvram, nil
}
