package spec

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

func good() *Spec {
	return &Spec{
		Version: Version, Memory: 64 << 20, VCPUs: 2,
		Disks: []Disk{{ID: "layer0", Serial: "layer0", Slot: 8, Size: 4096},
			{ID: "rw", Serial: "rw", Slot: 9, Size: 1 << 20}},
		NICs: []NIC{{ID: "net0", Name: "eth0", Slot: 4, MAC: "02:00:00:00:00:01", MTU: 1500,
			Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.2/24")}}},
		Container: &Container{
			OCI:    &specs.Spec{Process: &specs.Process{Args: []string{"sh"}}, Linux: &specs.Linux{}},
			Layers: []string{"layer0"}, Writable: "rw",
		},
	}
}

// pod makes s one of a pod with two containers that share a volume.
func pod(s *Spec) {
	member := func(guest, name string) Member {
		return Member{Guest: guest, Name: name, Mounts: []VolumeMount{{Volume: "v1", Target: "/data"}},
			Container: Container{OCI: s.Container.OCI, Layers: []string{"layer0"}}}
	}
	s.Pod = &Pod{
		Namespace: "team", Name: "web", Writable: "rw", Issued: 3, Volumes: []Volume{{ID: "v1", Kind: VolumeDisk}},
		Containers: []Member{member("c1", "web"), member("c3", "log")},
	}
	s.Disks[0].Slot = LastHotSlot
	s.Container = nil
}

// devices gives a pod a device of the node, and a file system on another one.
func devices(s *Spec) {
	pod(s)
	s.Disks = append(s.Disks, Disk{ID: "dev-7-1", Slot: FirstHotSlot, Size: 4096, Node: true},
		Disk{ID: "dev-7-2", Slot: FirstHotSlot + 1, Size: 4096, Type: "ext4", Node: true})
	s.Pod.Volumes = append(s.Pod.Volumes, Volume{ID: "v2", Kind: VolumeMounted, Disk: "dev-7-2"})
	s.Pod.Containers[0].Devices = []Device{{Disk: "dev-7-1", Path: "/dev/xvda", Mode: 0o660}}
}

// TestNodeDevices: who asks finds the disks that are in no snapshot, and what uses a disk.
func TestNodeDevices(t *testing.T) {
	s := good()
	pod(s)
	if ids := s.NodeDevices(); len(ids) != 0 {
		t.Errorf("a pod without devices has %q", ids)
	}
	s = good()
	devices(s)
	if ids := s.NodeDevices(); len(ids) != 2 || ids[0] != "dev-7-1" || ids[1] != "dev-7-2" {
		t.Errorf("devices %q", ids)
	}
	for id, want := range map[string]bool{"layer0": true, "dev-7-1": true, "dev-7-2": true, "dev-7-3": false} {
		if got := s.Pod.Uses(id); got != want {
			t.Errorf("disk %s is used: %v", id, got)
		}
	}
	if !s.Pod.Mounts("v1") || s.Pod.Mounts("v2") {
		t.Error("who mounts a volume is not known")
	}
}

// TestSchema: a Spec is written as the oldest schema that can say what it holds.
func TestSchema(t *testing.T) {
	s := good()
	if s.Schema() != 1 {
		t.Errorf("a Spec without a pod is written as %d", s.Schema())
	}
	pod(s)
	if s.Schema() != 2 || s.Pod.Member("c3").Name != "log" || s.Pod.Member("c2") != nil || s.Pod.Volume("v2") != nil {
		t.Errorf("a Spec with a pod is written as %d, or finds what it has not: %+v", s.Schema(), s.Pod)
	}
}

// vmDisk makes s one of a VM disk.
func vmDisk(s *Spec) {
	s.VMDisk = &VMDisk{OS: OSLinux, Boot: BootKernel, Path: "/disk/x.raw"}
	s.Disks = []Disk{
		{ID: "disk", Serial: "disk", Slot: 8, Size: 1 << 20, Type: TypeRaw},
		{ID: "kernel", Size: 4096, Type: TypeKernel, ReadOnly: true},
		{ID: "nvram", Size: 4096, Type: TypeNVRAM},
	}
	s.Container = &Container{OCI: &specs.Spec{Process: &specs.Process{}, Linux: &specs.Linux{}}}
}

// TestRoles: which disks the guest sees, and who has an agent.
func TestRoles(t *testing.T) {
	s := good()
	if !s.HasAgent() || s.Windows() || !s.Disks[0].Device() {
		t.Error("a container image is taken for a VM disk")
	}
	vmDisk(s)
	if s.HasAgent() || s.Windows() || !s.Disks[0].Device() || s.Disks[1].Device() || s.Disks[2].Device() {
		t.Error("a VM disk is not taken for one")
	}
	s.VMDisk.OS = OSWindows
	if !s.Windows() {
		t.Error("Windows is not known")
	}
}

func TestCheck(t *testing.T) {
	for _, ok := range []func(*Spec){
		func(*Spec) {},
		func(s *Spec) { s.Container = nil },
		func(s *Spec) { s.Disks, s.NICs, s.Container.Layers, s.Container.Writable = nil, nil, nil, "" },
		vmDisk,
		pod,
		devices,
		func(s *Spec) { pod(s); s.Pod.Containers[1].PID = "c1" },
		func(s *Spec) { pod(s); s.Pod.Containers, s.Pod.Volumes = nil, nil },
		func(s *Spec) { vmDisk(s); s.Disks = nil },
		func(s *Spec) { vmDisk(s); s.VMDisk.OS, s.VMDisk.Boot = OSWindows, BootUEFI },
	} {
		s := good()
		ok(s)
		if err := s.Check(); err != nil {
			t.Errorf("refused: %v", err)
		}
	}
	for _, c := range []struct {
		field string
		spoil func(*Spec)
	}{
		{"version", func(s *Spec) { s.Version = 0 }},
		{"version", func(s *Spec) { s.Version = Version + 1 }},
		{"version", func(s *Spec) { pod(s); s.Version = 1 }},
		{"pod", func(s *Spec) { pod(s); s.Container = &Container{} }},
		{"pod", func(s *Spec) { pod(s); s.Pod.Name = "" }},
		{"pod", func(s *Spec) { pod(s); s.Pod.Volumes = make([]Volume, maxVolumes+1) }},
		{"pod.writable", func(s *Spec) { pod(s); s.Pod.Writable = "other" }},
		{"pod.volumes", func(s *Spec) { pod(s); s.Pod.Volumes[0].Kind = "tape" }},
		{"pod.volumes", func(s *Spec) { pod(s); s.Pod.Volumes[0].ID = "../v" }},
		{"pod.volumes", func(s *Spec) { pod(s); s.Pod.Volumes = append(s.Pod.Volumes, s.Pod.Volumes[0]) }},
		{"pod.containers", func(s *Spec) { pod(s); s.Pod.Containers[0].Guest = "c4" }},
		{"pod.containers", func(s *Spec) { pod(s); s.Pod.Containers[0].Guest = "c3" }},
		{"pod.containers", func(s *Spec) { pod(s); s.Pod.Containers[0].Guest = "pod" }},
		{"pod.containers", func(s *Spec) { pod(s); s.Pod.Containers[0].Name = "" }},
		{"pod.containers", func(s *Spec) { pod(s); s.Pod.Containers[0].PID = "host" }},
		{"pod.containers", func(s *Spec) { pod(s); s.Pod.Containers[0].Writable = "rw" }},
		{"pod.containers", func(s *Spec) { pod(s); s.Pod.Containers[0].ImageID = "sha256:\x1b[2J" }},
		{"pod.containers", func(s *Spec) { pod(s); s.Pod.Containers[0].Layers = []string{"other"} }},
		{"pod.containers", func(s *Spec) { pod(s); s.Pod.Containers[0].Mounts[0].Volume = "v2" }},
		{"pod.containers", func(s *Spec) { pod(s); s.Pod.Containers[0].Mounts[0].Path = "a/../../b" }},
		{"pod.containers", func(s *Spec) { pod(s); s.Pod.Containers[0].Mounts[0].Target = "data" }},
		{"pod.containers", func(s *Spec) { devices(s); s.Pod.Containers[0].Devices[0].Disk = "layer0" }},
		{"pod.containers", func(s *Spec) { devices(s); s.Pod.Containers[0].Devices[0].Path = "xvda" }},
		{"pod.containers", func(s *Spec) { devices(s); s.Pod.Containers[0].Devices[0].Mode = 0o4777 }},
		{"pod.containers", func(s *Spec) { devices(s); s.Pod.Containers[0].Devices = make([]Device, maxDevices+1) }},
		{"pod.volumes", func(s *Spec) { devices(s); s.Pod.Volumes[1].Disk = "rw" }},
		{"pod.volumes", func(s *Spec) { devices(s); s.Pod.Volumes[1].Disk = "" }},
		{"pod.volumes", func(s *Spec) { devices(s); s.Pod.Volumes[0].Disk = "dev-7-2" }},
		{"disks", func(s *Spec) { devices(s); s.Disks[2].Slot = 10 }},
		{"disks", func(s *Spec) { s.Disks[0].Node = true }},
		{"container.oci", func(s *Spec) { pod(s); s.Pod.Containers[0].OCI = nil }},
		{"disks", func(s *Spec) { pod(s); s.Disks[0].Slot = LastHotSlot + 1 }},
		{"memory", func(s *Spec) { s.Memory = 0 }},
		{"memory", func(s *Spec) { s.Memory = 1 << 62 }},
		{"memory", func(s *Spec) { s.Memory++ }},
		{"vcpus", func(s *Spec) { s.VCPUs = 0 }},
		{"vcpus", func(s *Spec) { s.VCPUs = 1 << 20 }},
		{"disks", func(s *Spec) { s.Disks = make([]Disk, 1000) }},
		{"disks", func(s *Spec) { s.Disks[0].ID = "rw" }},
		{"disks", func(s *Spec) { s.Disks[0].Slot = -1 }},
		{"disks", func(s *Spec) { s.Disks[0].Slot = 32 }},
		{"disks", func(s *Spec) { s.Disks[0].Size = -1 }},
		{"disks", func(s *Spec) { s.Disks[0].Serial = strings.Repeat("x", 21) }},
		{"nics", func(s *Spec) { s.NICs = make([]NIC, 1000) }},
		{"nics", func(s *Spec) { s.NICs[0].MAC = "" }},
		{"nics", func(s *Spec) { s.NICs[0].MAC = "02:00:00:00:00:00:00:01" }},
		{"nics", func(s *Spec) { s.NICs[0].Name = "../eth0" }},
		{"nics", func(s *Spec) { s.NICs[0].MTU = 0 }},
		{"nics", func(s *Spec) { s.NICs[0].Slot = 99 }},
		{"nics", func(s *Spec) { s.NICs[0].Routes = make([]Route, 2000) }},
		{"nics", func(s *Spec) { s.NICs[0].Addresses = make([]netip.Prefix, 1) }},
		{"container.oci", func(s *Spec) { s.Container.OCI = nil }},
		{"container.oci.process", func(s *Spec) { s.Container.OCI.Process = nil }},
		{"container.oci.process", func(s *Spec) { s.Container.OCI.Process.Args = nil }},
		{"container.oci.linux", func(s *Spec) { s.Container.OCI.Linux = nil }},
		{"container", func(s *Spec) { s.Container.Writable = "other" }},
		{"container", func(s *Spec) { s.Container.Layers = []string{"other"} }},
		{"container", func(s *Spec) { vmDisk(s); s.Container = nil }},
		{"vmDisk.os", func(s *Spec) { vmDisk(s); s.VMDisk.OS = "solaris" }},
		{"vmDisk.boot", func(s *Spec) { vmDisk(s); s.VMDisk.Boot = "" }},
		{"vmDisk.dns", func(s *Spec) { vmDisk(s); s.VMDisk.DNS = []netip.Addr{{}} }},
		{"vmDisk.dns", func(s *Spec) { vmDisk(s); s.VMDisk.DNS = []netip.Addr{netip.MustParseAddr("fe80::1%eth0")} }},
		{"disks", func(s *Spec) { vmDisk(s); s.Disks = s.Disks[1:] }},
		{"disks", func(s *Spec) { vmDisk(s); s.Disks[0].ReadOnly = true }},
		{"disks", func(s *Spec) { vmDisk(s); s.Disks[1].ReadOnly = false }},
		{"disks", func(s *Spec) { vmDisk(s); s.Disks[1].Type = "erofs" }},
		{"disks", func(s *Spec) { vmDisk(s); s.Disks[1].Type = TypeNVRAM; s.Disks[1].ReadOnly = false }},
	} {
		s := good()
		c.spoil(s)
		if err := s.Check(); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "spec: "+c.field+":") {
			t.Errorf("want a refusal of %s, got %v", c.field, err)
		}
	}
}
