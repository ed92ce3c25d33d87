package cloudhypervisor

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

// idPattern is what is accepted of a caller's id; ours are put before it.
var idPattern = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,64}$`)

func invalid(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalidArgument)...)
}

// check refuses what the VMM would refuse later, with less to say, or not at all.
func check(cfg vmm.Config) error {
	if !filepath.IsAbs(cfg.Dir) {
		return invalid("directory %q is not absolute", cfg.Dir)
	}
	for _, path := range []string{controlPath(cfg.Dir), cfg.Agent} {
		if !filepath.IsAbs(path) || len(path) > maxSocketPath {
			return invalid("socket path %q: need an absolute one of at most %d bytes", path, maxSocketPath)
		}
	}
	switch {
	case cfg.Machine != "":
		return invalid("machine %q: Cloud Hypervisor has one machine", cfg.Machine)
	case cfg.CPU != "" && cfg.CPU != cpuModel:
		return invalid("CPU %q: Cloud Hypervisor gives its guests the host's", cfg.CPU)
	case cfg.VCPUs < 1:
		return invalid("%d vCPUs", cfg.VCPUs)
	case !cfg.Incoming && cfg.Kernel == "":
		return invalid("no kernel")
	}
	if err := checkRAM(cfg); err != nil {
		return err
	}
	seen, slots := map[string]bool{}, map[int]bool{}
	once := func(kind, id string, slot int) error {
		if seen[kind+id] || slots[slot] {
			return invalid("%s %s: id or slot %d used twice", kind, id, slot)
		}
		seen[kind+id], slots[slot] = true, true
		return nil
	}
	for _, disk := range cfg.Disks {
		if err := checkDisk(disk); err != nil {
			return err
		}
		if err := once("disk", disk.ID, disk.Slot); err != nil {
			return err
		}
	}
	for _, nic := range cfg.NICs {
		if err := checkNIC(nic); err != nil {
			return err
		}
		if err := once("NIC", nic.ID, nic.Slot); err != nil {
			return err
		}
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
