package fit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"godwit.dev/godwit/api/spec"
)

// The role reads its node's configuration and an offer, and answers what differs; what is no offer
// has no answer.
func TestMain(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "config.toml")
	text := fmt.Sprintf("node = 'b'\nstate_dir = %q\nrun_dir = %q\nram_dir = %q\n[vmm]\nkind = 'cloud-hypervisor'\n",
		dir, dir, dir)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ask := func(offer string) (Answer, error) {
		var out bytes.Buffer
		var a Answer
		if err := Main(t.Context(), []string{"-config", config}, strings.NewReader(offer), &out); err != nil {
			return a, err
		}
		return a, json.Unmarshal(out.Bytes(), &a)
	}
	a, err := ask(fmt.Sprintf(`{"spec": {"version": %d}, "facts": {"vmm": "qemu"}}`, spec.Version))
	if err != nil || !strings.Contains(a.Obstacle, "this node runs cloud-hypervisor") {
		t.Errorf("another VMM: %+v, %v", a, err)
	}
	var out bytes.Buffer
	if err := Main(t.Context(), []string{"-config", config, "-classes"}, nil, &out); err != nil ||
		!json.Valid(out.Bytes()) {
		t.Errorf("what VMs have here: %q, %v", out.String(), err)
	}
	for _, bad := range []string{"", "{", `{"spec": 1, "facts": 2}`} {
		if a, err := ask(bad); err == nil {
			t.Errorf("%q: %+v", bad, a)
		}
	}
}
