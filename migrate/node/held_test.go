package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"godwit.dev/godwit/api/config"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A report names every journal of the node. One that cannot be read, or is of a later build, is
// an error, and never a VM that is not here.
func TestHeld(t *testing.T) {
	cfg := config.Default()
	cfg.StateDir = t.TempDir()
	m := &Machines{Config: cfg}
	if all, err := m.Held(); err != nil || len(all) != 0 {
		t.Fatalf("a new node: %v, %v", all, err)
	}
	write := func(id, journal string) string {
		dir := cfg.VMDir("ns", id)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, "node.json")
		if err := os.WriteFile(path, []byte(journal), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("a", `{"version":1,"phase":"OWN","generation":7,"spec":{"uid":"u"},"unknown":1}`)
	write("b", `{"version":1,"phase":"PREPARED","generation":3,"operation":"op","attempt":2,`+
		`"digest":"sha256:d","repository":"r","spec":{"uid":"v"}}`)
	write("pod", `{"version":2,"phase":"OWN","generation":4,"spec":{"uid":"w","pod":{}}}`)
	write("fence", `{"version":1,"phase":"FENCED","operation":"op"}`)
	if err := os.MkdirAll(cfg.VMDir("ns", "begun"), 0o700); err != nil {
		t.Fatal(err)
	}
	want := []*nodev1.Held{
		{Vm: &nodev1.VM{Namespace: "ns", Id: "a"}, Uid: "u", Generation: 7, Phase: "OWN"},
		{Vm: &nodev1.VM{Namespace: "ns", Id: "b"}, Uid: "v", Generation: 3, Phase: "PREPARED", Operation: "op", Attempt: 2,
			Digest: "sha256:d", Repository: "r"},
		{Vm: &nodev1.VM{Namespace: "ns", Id: "pod"}, Uid: "w", Generation: 4, Phase: "OWN"},
	}
	got, err := m.Held()
	if d := cmp.Diff(want, got, protocmp.Transform()); d != "" || err != nil {
		t.Fatalf("%v (-want +got):\n%s", err, d)
	}
	for name, journal := range map[string]string{"damaged": `{"version":1,`, "of a later build": `{"version":99}`} {
		path := write("c", journal)
		if all, err := m.Held(); err == nil {
			t.Errorf("%s: %v", name, all)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(cfg.VMDir("ns", "c"), "node.json"), 0o700); err != nil { // EISDIR
		t.Fatal(err)
	}
	if all, err := m.Held(); err == nil {
		t.Errorf("a journal that cannot be read: %v", all)
	}
}

// TestGivenUp: only a fence of that attempt is a word that a VM does not come here.
func TestGivenUp(t *testing.T) {
	cfg := config.Default()
	cfg.StateDir = t.TempDir()
	m, vm := &Machines{Config: cfg}, &nodev1.VM{Namespace: "k8s.io", Id: "team.web"}
	ref := &machinev1.Ref{Operation: "op", Attempt: 2}
	if over, _, err := m.GivenUp(vm, ref); over || err != nil {
		t.Errorf("nothing is here: %v, %v", over, err)
	}
	dir := cfg.VMDir("k8s.io", "team.web")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]bool{
		`{"phase":"FENCED","operation":"op","attempt":2}`:                         true,
		`{"phase":"FENCED","operation":"op","attempt":2,"refusal":"its address"}`: true,
		`{"phase":"FENCED","operation":"op","attempt":1}`:                         false,
		`{"phase":"FENCED","operation":"other","attempt":2}`:                      false,
		`{"phase":"READY","operation":"op","attempt":2}`:                          false,
		`{"phase":"FENC`: false,
	} {
		if err := os.WriteFile(filepath.Join(dir, "node.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		over, why, err := m.GivenUp(vm, ref)
		if over != want || (err != nil) != strings.HasSuffix(text, "FENC") ||
			(why != "") != strings.Contains(text, "refusal") {
			t.Errorf("%s: %v, %v", text, over, err)
		}
	}
}
