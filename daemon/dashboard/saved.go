package dashboard

import (
	"fmt"
	"time"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// saving is what the VMs that sleep now do not use.
type saving struct {
	RAM      uint64  // bytes
	ByteTime float64 // bytes of RAM times seconds, since each fell asleep
	Known    int     // VMs that are counted
	Unknown  int     // VMs that sleep and whose RAM, or whose time, no record tells
}

// savingOf joins the VMs that sleep with the snapshots that own them. A time that is
// not over by this node's clock counts as now.
func savingOf(vms []*nodev1.VMInfo, snapshots []*nodev1.SnapshotInfo, now time.Time) (s saving) {
	owners := map[string]*nodev1.SnapshotInfo{}
	for _, snapshot := range snapshots {
		if snapshot.GetOwner() {
			owners[vmKey(snapshot.GetVm())+"/"+snapshot.GetDigest()] = snapshot
		}
	}
	for _, vm := range vms {
		if vm.GetStatus() != "hibernated" {
			continue
		}
		snapshot := owners[vmKey(vm.GetVm())+"/"+vm.GetOwner().GetDigest()]
		if snapshot.GetRamBytes() == 0 || snapshot.GetCreatedUnixNano() == 0 {
			s.Unknown++
			continue
		}
		s.Known++
		s.RAM += snapshot.GetRamBytes()
		s.ByteTime += float64(snapshot.GetRamBytes()) * max(0, now.Sub(when(snapshot.GetCreatedUnixNano())).Seconds())
	}
	return s
}

func vmKey(vm *nodev1.VM) string { return vm.GetNamespace() + "/" + vm.GetId() }

// gibHours is RAM over time for a person.
func gibHours(s saving) string {
	const gibHour = (1 << 30) * 3600 // bytes times seconds
	return fmt.Sprintf("%.1f GiB-hours", s.ByteTime/gibHour)
}
