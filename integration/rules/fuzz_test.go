package rules

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// parsers are the functions that read what others may have written, by who tries them
// (item 8 of the snapshot engine: index, frame table, manifest, Spec, agent frames).
var parsers = map[string]string{
	"FuzzDecode":         "the index of a snapshot, packed",
	"FuzzTables":         "its tables, unpacked",
	"FuzzFrame":          "frames of packs; of DHCP",
	"FuzzManifest":       "manifests",
	"FuzzConfig":         "configs, and with them the Spec",
	"FuzzGoldenManifest": "manifests of golden snapshots",
	"FuzzGoldenConfig":   "their configs",
	"FuzzHold":           "manifests that hold packs",
	"FuzzSealedBody":     "what is sealed of a config",
	"FuzzLocked":         "the locks of a key",
	"FuzzSignatures":     "signatures",
	"FuzzTable":          "page tables",
	"FuzzFinished":       "lists of packs that a failed push has stored",
	"FuzzHosts":          "hosts.toml",
	"FuzzDecoder":        "frames of the agent's channel",
	"FuzzHost":           "their order",
	"FuzzGuard":          "answers of the agent, before they are parsed",
	"FuzzAnswers":        "answers of the agent",
	"FuzzSameAsProtobuf": "the agent's messages",
	"FuzzRead":           "qcow2",
	"FuzzReceive":        "the stream of a live move",
	"FuzzUnpack":         "archives of files that a guest sends",
	"FuzzState":          "Cloud Hypervisor's device state",
	"FuzzEvents":         "its events",
}

// Each parser of foreign bytes has a fuzz target, make fuzz runs all that there are, and
// the list above is complete.
func TestFuzzTargets(t *testing.T) {
	cmd := exec.Command("git", "grep", "-h", "-o", "^func Fuzz[A-Za-z0-9_]*", "--", "*_test.go")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		name := strings.TrimPrefix(line, "func ")
		if found[name] = true; parsers[name] == "" {
			t.Errorf("%s: say in the list of parsers what it tries", name)
		}
	}
	for name, what := range parsers {
		if !found[name] {
			t.Errorf("%s (%s) has no fuzz target of that name", what, name)
		}
	}
	// The script must look for targets as this test does.
	script, err := os.ReadFile(filepath.Join(root, "tools", "fuzz.sh"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(script), `git grep -o '^func Fuzz[A-Za-z0-9_]*' -- '*_test.go'`) {
		t.Error("tools/fuzz.sh finds its targets in another way")
	}
}
