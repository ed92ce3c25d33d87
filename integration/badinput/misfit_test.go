//go:build integration

package badinput

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"godwit.dev/godwit/integration/harness"
)

// otherVMM is the one that this node does not run.
func otherVMM() string {
	if harness.VMM() == "qemu" {
		return "cloud-hypervisor"
	}
	return "qemu"
}

// misfit: a snapshot whose device state does not fit this node is refused by what differs. That comes before a byte of
// RAM, disks or device state is pulled.
func misfit(t *testing.T, g *guest, good string) {
	facts := func(set func(facts, spec map[string]any)) func(*testing.T, *guest, *v1.Manifest) {
		return config(func(c map[string]any) {
			spec := c["spec"].(map[string]any)
			set(c["facts"].(map[string]any), spec)
		})
	}
	vmmOf := func(spec map[string]any) map[string]any { return spec["vmm"].(map[string]any) }
	for _, c := range []struct {
		name   string
		change func(facts, spec map[string]any)
		class  string
		words  []string
	}{
		{"another VMM", func(f, s map[string]any) { f["vmm"], vmmOf(s)["name"] = otherVMM(), otherVMM() },
			"FailedPrecondition", []string{otherVMM(), "this node runs " + harness.VMM()}},
		{"facts that are not the Spec's", func(f, _ map[string]any) { f["vmm"] = otherVMM() },
			"InvalidArgument", []string{"names VMM", otherVMM()}},
		{"a newer VMM", func(f, _ map[string]any) { f["version"] = "99.1" },
			"FailedPrecondition", []string{"made by " + harness.VMM() + " 99.1", "older"}},
		{"another machine", func(f, s map[string]any) { f["machine"], vmmOf(s)["machine"] = "pc-other-1.0", "pc-other-1.0" },
			"FailedPrecondition", []string{"machine", "pc-other-1.0"}},
		{"another CPU model", func(f, s map[string]any) { f["cpu"], vmmOf(s)["cpu"] = "EPYC-Turin", "EPYC-Turin" },
			"FailedPrecondition", []string{"CPU model", "EPYC-Turin"}},
		{"a CPU that has more", func(f, _ map[string]any) { f["features"] = []string{"avx9000"} },
			"FailedPrecondition", []string{"CPU feature avx9000"}},
		{"another acceleration", func(f, _ map[string]any) { f["accel"] = "whpx" },
			"FailedPrecondition", []string{"acceleration", "whpx"}},
		{"another device layout", func(_, s map[string]any) { s["disks"].([]any)[0].(map[string]any)["slot"] = 3 },
			"FailedPrecondition", []string{"device layout", "slot 3"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := g.manifest(t, good)
			facts(c.change)(t, g, m)
			data, err := json.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			digest := g.plant(t, data, true)
			g.Door.Take()
			godwitFails(t, g.Node(1), "wake", "--on", "b", "--force", "--digest", digest, g.id).want(t, c.class,
				append(c.words, digest, g.id)...)
			if pulled := content(m, g.Door.Take()); len(pulled) > 0 {
				t.Errorf("pulled before it was refused: %v", pulled)
			}
			g.sleepsStill(t, good)
		})
	}
}

// content are the requests for what is in the VM: all layers but the index, which says
// what the others are.
func content(m *v1.Manifest, log []harness.Exchange) (paths []string) {
	for _, e := range log {
		i := slices.IndexFunc(m.Layers, func(l v1.Descriptor) bool {
			return strings.HasSuffix(e.Path, "/blobs/"+l.Digest.String())
		})
		if e.Method == http.MethodGet && i >= 0 && i != 1 {
			paths = append(paths, e.Path)
		}
	}
	return paths
}
