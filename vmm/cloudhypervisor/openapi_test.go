package cloudhypervisor

import (
	"os"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// unpublished are fields that the program has and its published description has not.
var unpublished = map[string]bool{"Net.fds": true, "NetFDs.id": true, "NetFDs.num_fds": true, "Restore.net_fds": true}

// published names, in Cloud Hypervisor's own description, the definitions of ours.
var published = map[string]string{
	"Ping": "VmmPingResponse", "Info": "VmInfo", "Snapshot": "VmSnapshotConfig", "Restore": "RestoreConfig",
	"NetFDs": "RestoredNetConfig", "Device": "VmRemoveDevice", "VM": "VmConfig", "CPUs": "CpusConfig",
	"Memory": "MemoryConfig",
	"Zone":   "MemoryZoneConfig", "Payload": "PayloadConfig", "Disk": "DiskConfig", "Net": "NetConfig", "Rng": "RngConfig",
	"Vsock": "VsockConfig", "Console": "ConsoleConfig", "LandlockRule": "LandlockConfig",
}

// document is what both descriptions have in common.
type document struct {
	Paths       map[string]map[string]any `yaml:"paths"`
	Definitions map[string]definition     `yaml:"definitions"`
	Components  struct {
		Schemas map[string]schema `yaml:"schemas"`
	} `yaml:"components"`
}

type schema struct {
	definition `yaml:",inline"`
	AllOf      []struct {
		Ref        string `yaml:"$ref"`
		definition `yaml:",inline"`
	} `yaml:"allOf"`
}

// has looks in the parts that a schema is made of, too.
func (d document) has(name, field string) bool {
	s := d.Components.Schemas[name]
	if _, ok := s.Properties[field]; ok {
		return true
	}
	for _, part := range s.AllOf {
		if _, ok := part.Properties[field]; ok {
			return true
		}
		if part.Ref != "" && d.has(strings.TrimPrefix(part.Ref, "#/components/schemas/"), field) {
			return true
		}
	}
	return false
}

// TestDescription compares ours with the published one: every call and every field that
// we use must be in it. Its file is not part of this repository.
func TestDescription(t *testing.T) {
	path := os.Getenv("GODWIT_CLOUD_HYPERVISOR_OPENAPI")
	if path == "" {
		t.Skip("GODWIT_CLOUD_HYPERVISOR_OPENAPI names no published description")
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var ours, theirs document
	if err := yaml.Unmarshal(data, &theirs); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(description, &ours); err != nil {
		t.Fatal(err)
	}
	for call, methods := range ours.Paths {
		for method := range methods {
			if _, ok := theirs.Paths[call][method]; !ok {
				t.Errorf("%s %s is not published", method, call)
			}
		}
	}
	for name, def := range ours.Definitions {
		for field := range def.Properties {
			if !theirs.has(published[name], field) && !unpublished[name+"."+field] {
				t.Errorf("%s.%s is not in %q", name, field, published[name])
			}
		}
	}
}
