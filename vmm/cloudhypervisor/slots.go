package cloudhypervisor

import (
	"godwit.dev/godwit/vmm"
	"godwit.dev/godwit/vmm/process"
)

// PCI device numbers on the one bus. They are in every snapshot and never change.
//
//	 1      vsock (the agent's channel)
//	 2      virtio-rng
//	 3      pvpanic: it takes the first number that nobody else has asked for
//	 4..7   NICs
//	 8..28  disks
//	29..31  free
//
// A VM with hot disks has its other disks at 8 to 12 only: their slots are the same on every VMM, and
// begin with the first. The slots 32 to 47 of disks that are plugged in are the device numbers 13 to 28.
const (
	// FirstNICSlot to LastNICSlot are for vmm.NIC.Slot.
	FirstNICSlot = 4
	LastNICSlot  = 7
	// FirstDiskSlot to LastDiskSlot are for vmm.Disk.Slot.
	FirstDiskSlot = 8
	LastDiskSlot  = 28

	// FirstHotSlot to LastHotSlot are for disks that are plugged in while the VM runs.
	FirstHotSlot = 32
	LastHotSlot  = FirstHotSlot + process.HotPoints - 1

	vsockSlot = 1
	rngSlot   = 2
)

// guestCID is the guest's address on its vsock. Every VM has the same: the host's side is
// a socket of its own, and the guest keeps the number across a restore.
const guestCID = 3

var slots = vmm.Slots{
	FirstDisk: FirstDiskSlot, LastDisk: LastDiskSlot, FirstNIC: FirstNICSlot, LastNIC: LastNICSlot,
	FirstHot: FirstHotSlot, LastHot: LastHotSlot,
}

// slotsOf a VM: hot disks take device numbers away from the others.
func slotsOf(cfg vmm.Config) vmm.Slots {
	s := slots
	if cfg.HotDisks {
		s.LastDisk -= process.HotPoints
	}
	return s
}

// place of a hot slot among those of process.HotDir.
func place(slot int) int { return slot - FirstHotSlot }

// number is the PCI device number of a disk's slot.
func number(slot int) int64 {
	if slots.Hot(slot) {
		return int64(LastDiskSlot - process.HotPoints + 1 + place(slot))
	}
	return int64(slot)
}
