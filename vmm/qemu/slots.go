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
//
// A VM with hot disks has a PCI bridge at 3. The slots 32 to 47 of its disks are the devices 1 to 16 of the
// bridge's bus.
const (
	// FirstNICSlot to LastNICSlot are for vmm.NIC.Slot.
	FirstNICSlot = 4
	LastNICSlot  = 7
	// FirstDiskSlot to LastDiskSlot are for vmm.Disk.Slot: 20 read-only disks and a
	// writable one.
	FirstDiskSlot = 8
	LastDiskSlot  = 28

	// FirstHotSlot to LastHotSlot are for disks that are plugged in while the VM runs.
	FirstHotSlot = 32
	LastHotSlot  = 47

	serialSlot    = 1
	rngSlot       = 2
	hotBridgeSlot = 3
)

var slots = vmm.Slots{
	FirstDisk: FirstDiskSlot, LastDisk: LastDiskSlot, FirstNIC: FirstNICSlot, LastNIC: LastNICSlot,
	FirstHot: FirstHotSlot, LastHot: LastHotSlot,
}

// hotBridge is the bridge of hot disks. A bus with 16 places costs a boot less than 16 root ports do.
func hotBridge() []string {
	return []string{"-device", opt("pcie-pci-bridge", "id", hotBus, "addr", addr(hotBridgeSlot))}
}

const hotBus = "hot"

// hotAddr is the device number of a hot slot on that bus.
func hotAddr(slot int) string { return addr(slot - FirstHotSlot + 1) }
