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
		Disks: []Disk{{ID: "layer0", Serial: "layer0", Slot: 8, Size: 4096}, {ID: "rw", Serial: "rw", Slot: 9, Size: 1 << 20}},
		NICs:  []NIC{{ID: "net0", Name: "eth0", Slot: 4, MAC: "02:00:00:00:00:01", MTU: 1500, Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.2/24")}}},
		Container: &Container{
			OCI:    &specs.Spec{Process: &specs.Process{Args: []string{"sh"}}, Linux: &specs.Linux{}},
			Layers: []string{"layer0"}, Writable: "rw",
		},
	}
}

func TestCheck(t *testing.T) {
	for _, ok := range []func(*Spec){
		func(*Spec) {},
		func(s *Spec) { s.Container = nil },
		func(s *Spec) { s.Disks, s.NICs, s.Container.Layers, s.Container.Writable = nil, nil, nil, "" },
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
	} {
		s := good()
		c.spoil(s)
		if err := s.Check(); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "spec: "+c.field+":") {
			t.Errorf("want a refusal of %s, got %v", c.field, err)
		}
	}
}
