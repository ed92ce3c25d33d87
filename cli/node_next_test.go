package cli

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"godwit.dev/godwit/api/config"
)

// godwit node init says where VMs sleep, whose that store is, and what to start, with systemd and without.
func TestWhatNodeInitSays(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		registry, systemd string
		says              []string
	}{
		{"", dir, []string{dir + "/store, of this node alone", "registry.repository", "systemctl enable --now godwitd"}},
		{"[registry]\nlayout = '/shared'\n", filepath.Join(dir, "none"), []string{"sleep in /shared (", "containerd &",
			"godwitd &", "godwit doctor", "godwit doctor --fix"}},
		{"[registry]\nrepository = 'registry.example/vms'\n", dir, []string{"sleep in registry.example/vms ("}},
	} {
		cfg, err := config.Parse("t", []byte(fmt.Sprintf("state_dir = %q\n%s", dir, c.registry)))
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := introduce(&out, cfg, c.systemd); err != nil {
			t.Fatal(err)
		}
		for _, want := range c.says {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%q is not in: %s", want, &out)
			}
		}
	}
}
