package vmm

import (
	"fmt"
	"net"
	"path/filepath"
	"regexp"

	"github.com/containerd/errdefs"
)

const (
	maxSocketPath = 107 // sun_path, less its final zero
	maxSerial     = 20  // of virtio-blk
	pageSize      = 2 << 20
)

// idPattern is what every VMM accepts of a caller's id; its own words are put before it.
var idPattern = regexp.MustCompile(`^[a-zA-Z0-9._-]+$`)

func isID(s string) bool { return len(s) <= 64 && idPattern.MatchString(s) }

func invalid(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalidArgument)...)
}

// Slots are where an implementation has room for devices, first and last ones included.
type Slots struct{ FirstDisk, LastDisk, FirstNIC, LastNIC, FirstHot, LastHot int }

// Hot tells whether a slot is one for disks that are plugged in while the VM runs.
func (s Slots) Hot(slot int) bool { return slot >= s.FirstHot && slot <= s.LastHot }

// Check refuses, with InvalidArgument, what a VMM would refuse later, with less to say, or
// not at all. control is the path of the socket that the VMM is driven by.
func (c Config) Check(control string, slots Slots) error {
	for _, path := range []string{control, c.Agent} {
		if !filepath.IsAbs(path) || len(path) > maxSocketPath {
			return invalid("socket path %q: need an absolute one of at most %d bytes", path, maxSocketPath)
		}
	}
	if c.Serial != "" && (c.Console != nil || !filepath.IsAbs(c.Serial) || len(c.Serial) > maxSocketPath) {
		return invalid("serial socket %q: need an absolute path of at most %d bytes, and no console file", c.Serial,
			maxSocketPath)
	}
	if c.Firmware != nil && c.Kernel != "" || c.NVRAM != nil && c.Firmware == nil {
		return invalid("firmware in addition to a kernel, or its variables without it")
	}
	if c.VCPUs < 1 {
		return invalid("%d vCPUs", c.VCPUs)
	}
	if err := c.checkRAM(); err != nil {
		return err
	}
	return c.checkDevices(slots)
}

func (c Config) checkDevices(slots Slots) error {
	seen, used := map[string]bool{}, map[int]bool{}
	once := func(kind, id string, slot int) error {
		if seen[kind+id] || used[slot] {
			return invalid("%s %s: id or slot %d used twice", kind, id, slot)
		}
		seen[kind+id], used[slot] = true, true
		return nil
	}
	for _, disk := range c.Disks {
		if err := disk.check(slots, c.HotDisks); err != nil {
			return err
		}
		if err := once("disk", disk.ID, disk.Slot); err != nil {
			return err
		}
	}
	for _, nic := range c.NICs {
		if err := nic.Check(slots); err != nil {
			return err
		}
		if err := once("NIC", nic.ID, nic.Slot); err != nil {
			return err
		}
	}
	return nil
}

func (c Config) checkRAM() error {
	if c.RAM == nil {
		return invalid("no RAM file")
	}
	if c.Memory == 0 || c.Memory%pageSize != 0 {
		return invalid("memory %d: need a multiple of 2 MiB", c.Memory)
	}
	info, err := c.RAM.Stat()
	if err != nil {
		return fmt.Errorf("RAM file: %w: %w", errdefs.ErrInvalidArgument, err)
	}
	if uint64(info.Size()) != c.Memory {
		return invalid("RAM file has %d bytes, memory is %d", info.Size(), c.Memory)
	}
	return nil
}

// CheckHot refuses a disk that is to be plugged in, as Config.Check does.
func (d Disk) CheckHot(slots Slots) error {
	if !slots.Hot(d.Slot) {
		return invalid("disk %s: slot %d, disks that are plugged in have %d to %d", d.ID, d.Slot, slots.FirstHot,
			slots.LastHot)
	}
	if err := d.check(slots, true); err != nil {
		return err
	}
	info, err := d.File.Stat()
	if err != nil {
		return fmt.Errorf("disk %s: %w", d.ID, err)
	}
	if info.Mode().IsRegular() && (info.Size() == 0 || info.Size()%sector != 0) {
		return invalid("disk %s: its file has %d bytes, which are not whole sectors of %d: it is cut short", d.ID,
			info.Size(), sector)
	}
	return nil
}

const sector = 512 // of a disk, in bytes

func (d Disk) check(slots Slots, hot bool) error {
	switch {
	case !isID(d.ID):
		return invalid("disk id %q", d.ID)
	case d.File == nil:
		return invalid("disk %s: no file", d.ID)
	case slots.Hot(d.Slot) && !hot:
		return invalid("disk %s: slot %d, and the VM has no slots for disks that are plugged in", d.ID, d.Slot)
	case (d.Slot < slots.FirstDisk || d.Slot > slots.LastDisk) && !slots.Hot(d.Slot):
		return invalid("disk %s: slot %d, disks have %d to %d", d.ID, d.Slot, slots.FirstDisk, slots.LastDisk)
	case len(d.Serial) > maxSerial:
		return invalid("disk %s: serial %q is longer than %d", d.ID, d.Serial, maxSerial)
	}
	return nil
}

// Check refuses a NIC, of a Config or to be added, as Config.Check does.
func (n NIC) Check(slots Slots) error {
	mac, err := net.ParseMAC(n.MAC)
	switch {
	case !isID(n.ID):
		return invalid("NIC id %q", n.ID)
	case n.Tap == nil:
		return invalid("NIC %s: no tap", n.ID)
	case err != nil || len(mac) != 6:
		return invalid("NIC %s: MAC %q", n.ID, n.MAC)
	case n.Slot < slots.FirstNIC || n.Slot > slots.LastNIC:
		return invalid("NIC %s: slot %d, NICs have %d to %d", n.ID, n.Slot, slots.FirstNIC, slots.LastNIC)
	case n.MTU < 68 || n.MTU > 65535:
		return invalid("NIC %s: MTU %d", n.ID, n.MTU)
	}
	return nil
}
