package qemu

import (
	"fmt"
	"net"
	"path/filepath"
	"regexp"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/vmm"
)

const (
	maxSocketPath = 107 // sun_path, less its final zero
	maxSerial     = 20  // of virtio-blk
	pageSize      = 2 << 20
)

// idPattern is what QEMU accepts within an id.
var idPattern = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,64}$`)

func invalid(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalidArgument)...)
}

// check refuses what QEMU would refuse later, with less to say, or not at all.
func check(cfg vmm.Config, control string) error {
	for _, path := range []string{control, cfg.Agent} {
		if !filepath.IsAbs(path) || len(path) > maxSocketPath {
			return invalid("socket path %q: need an absolute one of at most %d bytes", path, maxSocketPath)
		}
	}
	if cfg.VCPUs < 1 {
		return invalid("%d vCPUs", cfg.VCPUs)
	}
	if err := checkRAM(cfg); err != nil {
		return err
	}
	seen := map[string]bool{}
	slots := map[int]bool{}
	for _, disk := range cfg.Disks {
		if err := checkDisk(disk); err != nil {
			return err
		}
		if seen[disk.ID] || slots[disk.Slot] {
			return invalid("disk %s: id or slot %d used twice", disk.ID, disk.Slot)
		}
		seen[disk.ID], slots[disk.Slot] = true, true
	}
	clear(seen)
	for _, nic := range cfg.NICs {
		if err := checkNIC(nic); err != nil {
			return err
		}
		if seen[nic.ID] || slots[nic.Slot] {
			return invalid("NIC %s: id or slot %d used twice", nic.ID, nic.Slot)
		}
		seen[nic.ID], slots[nic.Slot] = true, true
	}
	return nil
}

func checkRAM(cfg vmm.Config) error {
	if cfg.RAM == nil {
		return invalid("no RAM file")
	}
	if cfg.Memory == 0 || cfg.Memory%pageSize != 0 {
		return invalid("memory %d: need a multiple of 2 MiB", cfg.Memory)
	}
	info, err := cfg.RAM.Stat()
	if err != nil {
		return fmt.Errorf("RAM file: %w: %w", errdefs.ErrInvalidArgument, err)
	}
	if uint64(info.Size()) != cfg.Memory {
		return invalid("RAM file has %d bytes, memory is %d", info.Size(), cfg.Memory)
	}
	return nil
}

func checkDisk(disk vmm.Disk) error {
	switch {
	case !idPattern.MatchString(disk.ID):
		return invalid("disk id %q", disk.ID)
	case disk.File == nil:
		return invalid("disk %s: no file", disk.ID)
	case disk.Slot < FirstDiskSlot || disk.Slot > LastDiskSlot:
		return invalid("disk %s: slot %d, disks have %d to %d", disk.ID, disk.Slot, FirstDiskSlot, LastDiskSlot)
	case len(disk.Serial) > maxSerial:
		return invalid("disk %s: serial %q is longer than %d", disk.ID, disk.Serial, maxSerial)
	}
	return nil
}

func checkNIC(nic vmm.NIC) error {
	mac, err := net.ParseMAC(nic.MAC)
	switch {
	case !idPattern.MatchString(nic.ID):
		return invalid("NIC id %q", nic.ID)
	case nic.Tap == nil:
		return invalid("NIC %s: no tap", nic.ID)
	case err != nil || len(mac) != 6:
		return invalid("NIC %s: MAC %q", nic.ID, nic.MAC)
	case nic.Slot < FirstNICSlot || nic.Slot > LastNICSlot:
		return invalid("NIC %s: slot %d, NICs have %d to %d", nic.ID, nic.Slot, FirstNICSlot, LastNICSlot)
	case nic.MTU < 68 || nic.MTU > 65535:
		return invalid("NIC %s: MTU %d", nic.ID, nic.MTU)
	}
	return nil
}
