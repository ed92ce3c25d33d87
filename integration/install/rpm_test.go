//go:build integration

package install

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// builtRPM is the RPM that `make package` has built.
func builtRPM(t *testing.T) string {
	t.Helper()
	top, _ := built(t)
	all, err := filepath.Glob(filepath.Join(top, "out", "godwit-*.rpm"))
	if err != nil || len(all) != 1 {
		t.Fatalf("out/ has %d RPMs, want one (make package): %v", len(all), err)
	}
	return all[0]
}

// TestRPM shows the life of the RPM: installed, installed again over what the administrator has changed,
// removed while a VM is there. Its dependencies have Fedora's names and are not looked for on this machine.
func TestRPM(t *testing.T) {
	data, err := os.ReadFile(builtRPM(t))
	if err != nil {
		t.Fatal(err)
	}
	r := newRoot(t)
	if err := os.WriteFile(r.path("/tmp/godwit.rpm"), data, 0o644); err != nil {
		t.Fatal(err)
	}
	rpm := func(args ...string) string { return r.run(t, append([]string{"rpm", "--nodeps"}, args...)...) }
	const unit = "/usr/lib/systemd/system/godwitd.service"

	rpm("--install", "/tmp/godwit.rpm")
	for _, file := range []string{config, dropIn, unit, "/usr/share/zsh/site-functions/_godwit",
		"/usr/share/godwit/vmlinuz",
		"/usr/share/doc/godwit/copyright", "/usr/share/doc/godwit/godwit.cdx.json"} {
		if !r.has(file) {
			t.Errorf("there is no %s", file)
		}
	}
	if out := rpm("--verify", "godwit"); out != "" {
		t.Errorf("rpm --verify: %s", out)
	}
	terms := r.run(t, "cat", "/usr/share/doc/godwit/copyright")
	for _, whole := range []string{"END OF TERMS AND CONDITIONS", "GNU GENERAL PUBLIC LICENSE"} {
		if !strings.Contains(terms, whole) { // a Debian system has these two elsewhere
			t.Errorf("the licences lack %q", whole)
		}
	}
	if out := r.run(t, "systemd-analyze", "verify", unit); out != "" {
		t.Errorf("systemd-analyze verify: %s", out)
	}
	if out := r.run(t, "godwit", "version"); !strings.HasPrefix(out, "godwit ") {
		t.Errorf("godwit version: %s", out)
	}

	r.write(t, config, "# mine\n")
	r.write(t, journal, "{}")
	if out := rpm("--upgrade", "--force", "/tmp/godwit.rpm"); strings.Contains(out, "left as they are") {
		t.Errorf("an upgrade speaks of a removal: %s", out)
	}
	if out := r.run(t, "cat", config); out != "# mine\n" {
		t.Errorf("the configuration is not the administrator's: %s", out)
	}

	if out := rpm("--erase", "godwit"); !strings.Contains(out, "VMs of this node are left as they are") {
		t.Errorf("the removal says nothing of the VMs: %s", out)
	}
	for file, want := range map[string]bool{journal: true, config + ".rpmsave": true, "/usr/bin/godwitd": false,
		unit:                false,
		"/usr/share/godwit": false} {
		if r.has(file) != want {
			t.Errorf("%s is there: %t, want %t", file, !want, want)
		}
	}
}
