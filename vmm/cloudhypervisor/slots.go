package cloudhypervisor

import "godwit.dev/godwit/vmm"

// PCI device numbers on the one bus. They are in every snapshot and never change.
//
//	 1      vsock (the agent's channel)
//	 2      virtio-rng
//	 3      pvpanic: it takes the first number that nobody else has asked for
//	 4..7   NICs
//	 8..28  disks
//	29..31  free
const (
	// FirstNICSlot to LastNICSlot are for vmm.NIC.Slot.
	FirstNICSlot = 4
	LastNICSlot  = 7
	// FirstDiskSlot to LastDiskSlot are for vmm.Disk.Slot.
	FirstDiskSlot = 8
	LastDiskSlot  = 28

	vsockSlot = 1
	rngSlot   = 2
)

// guestCID is the guest's address on its vsock. Every VM has the same: the host's side is
// a socket of its own, and the guest keeps the number across a restore.
const guestCID = 3

var slots = vmm.Slots{FirstDisk: FirstDiskSlot, LastDisk: LastDiskSlot, FirstNIC: FirstNICSlot, LastNIC: LastNICSlot}
