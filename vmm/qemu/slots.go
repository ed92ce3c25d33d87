package qemu

import "godwit.dev/godwit/vmm"

// The root bus of every VM, by PCI device number. The numbers are part of the device
// state: they never change for a machine that has snapshots.
//
//	 0      host bridge
//	 1      virtio-serial (the agent's channel)
//	 2      virtio-rng
//	 3      free
//	 4..7   a root port each, always there; the NIC of that slot sits behind it
//	 8..28  disks
//	29..30  free
//	31      ICH9
const (
	// FirstNICSlot to LastNICSlot are for vmm.NIC.Slot.
	FirstNICSlot = 4
	LastNICSlot  = 7
	// FirstDiskSlot to LastDiskSlot are for vmm.Disk.Slot: 20 read-only disks and a
	// writable one.
	FirstDiskSlot = 8
	LastDiskSlot  = 28

	serialSlot = 1
	rngSlot    = 2
)

var slots = vmm.Slots{FirstDisk: FirstDiskSlot, LastDisk: LastDiskSlot, FirstNIC: FirstNICSlot, LastNIC: LastNICSlot}
