package spec

import (
	"net/netip"
	"slices"
)

// VMDisk says how a VM boots the system on its disk.
type VMDisk struct {
	OS   string `json:"os"`   // OSLinux or OSWindows
	Boot string `json:"boot"` // BootUEFI, BootBIOS or BootKernel
	Path string `json:"path"` // of the disk in its image

	// DNS and Search are of the resolv.conf that a client gave the container. They travel,
	// because the guest is told them where it wakes, too, and no client is there.
	DNS    []netip.Addr `json:"dns,omitempty"`
	Search []string     `json:"search,omitempty"`
}

// What runs on a VM disk. Windows gets firmware, the enlightenments of Hyper-V and no
// balloon, and its NIC is removed before a capture.
const (
	OSLinux   = "linux"
	OSWindows = "windows"
)

// Ways to boot a VM disk.
const (
	BootUEFI   = "uefi"
	BootBIOS   = "bios"
	BootKernel = "kernel" // next to the disk in its image
)

// Types of a VM disk's files. Only the raw one is a block device of the guest. The VMM reads the
// others. They travel with the VM, so that it boots on every node as on its first one, after a
// reset too.
const (
	TypeRaw      = "raw"
	TypeFirmware = "firmware"
	TypeNVRAM    = "nvram" // the firmware's variables, which the guest writes
	TypeKernel   = "kernel"
	TypeInitrd   = "initrd"
)

// HasAgent reports whether godwit's agent runs in the guest. Without it an address, a clock or a
// size of a terminal cannot be set there, and nothing is executed on request.
func (s *Spec) HasAgent() bool { return s.VMDisk == nil }

// Windows reports whether the rules for Windows guests hold.
func (s *Spec) Windows() bool { return s.VMDisk != nil && s.VMDisk.OS == OSWindows }

// Recycles reports whether the VM sleeps without its NICs.
func (s *Spec) Recycles() bool { return s.Recycle || s.Windows() }

// Device reports whether the guest has the disk as a block device.
func (d Disk) Device() bool {
	return !slices.Contains([]string{TypeFirmware, TypeNVRAM, TypeKernel, TypeInitrd}, d.Type)
}

func (s *Spec) checkVMDisk() error {
	v := s.VMDisk
	if v == nil {
		return nil
	}
	switch {
	case v.OS != OSLinux && v.OS != OSWindows:
		return invalid("vmDisk.os", "%q", v.OS)
	case !slices.Contains([]string{BootUEFI, BootBIOS, BootKernel}, v.Boot):
		return invalid("vmDisk.boot", "%q", v.Boot)
	case slices.ContainsFunc(v.DNS, func(a netip.Addr) bool { return !a.IsValid() || a.Zone() != "" || a.IsLoopback() }):
		return invalid("vmDisk.dns", "%v", v.DNS)
	}
	count := map[string]int{}
	for _, d := range s.Disks {
		count[d.Type]++
		if d.ReadOnly != (d.Type != TypeRaw && d.Type != TypeNVRAM) {
			return invalid("disks", "%q of type %q: read-only is %t", d.ID, d.Type, d.ReadOnly)
		}
	}
	for kind, n := range count {
		if n > 1 || !slices.Contains([]string{TypeRaw, TypeFirmware, TypeNVRAM, TypeKernel, TypeInitrd}, kind) {
			return invalid("disks", "%d of type %q in addition to a VM disk", n, kind)
		}
	}
	// Before Create has made them there are none.
	if len(s.Disks) > 0 && count[TypeRaw] == 0 {
		return invalid("disks", "none is a VM disk")
	}
	return nil
}
