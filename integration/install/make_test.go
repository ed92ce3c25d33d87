//go:build integration

package install

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"godwit.dev/godwit/integration/harness"
)

// make install puts down what the package has, below PREFIX; it keeps a configuration that
// is there, and make uninstall leaves that alone.
func TestMakeInstall(t *testing.T) {
	top, deb := built(t)
	dir := t.TempDir()
	args := []string{"--no-print-directory", "DESTDIR=" + dir, "PREFIX=/opt/godwit"}
	command(t, top, "make", append(args, "install")...)

	listed := map[string]bool{}
	for _, line := range strings.Split(command(t, "", "bash", "-c", `dpkg-deb --fsys-tarfile "$1" | tar -t`, "-", deb),
		"\n") {
		listed[strings.TrimSuffix(filepath.Base(line), ".gz")] = true
	}
	found := tree(t, dir)
	for _, file := range found {
		if !listed[filepath.Base(file)] {
			t.Errorf("the package lacks %s", file)
		}
	}
	if len(found) < 30 { // three programs, the guest, unit, drop-in, configuration, manual, completions
		t.Errorf("%d files are installed: %v", len(found), found)
	}
	conf := filepath.Join(dir, config)
	text, err := os.ReadFile(conf)
	if err != nil || !strings.Contains(string(text), `"/opt/godwit/share/godwit/vmlinuz"`) {
		t.Errorf("the configuration names another kernel: %v\n%s", err, text)
	}
	unit, err := os.ReadFile(filepath.Join(dir, "/opt/godwit/lib/systemd/system/godwitd.service"))
	if err != nil || !strings.Contains(string(unit), "ExecStart=/opt/godwit/bin/godwitd ") {
		t.Errorf("the unit starts another program: %v\n%s", err, unit)
	}
	if !strings.Contains(string(unit), " remote-fs.target ") { // a registry.layout may be there
		t.Errorf("the unit starts before network file systems are mounted:\n%s", unit)
	}
	if out := command(t, "", filepath.Join(dir, "/opt/godwit/bin/godwit"), "version"); !strings.HasPrefix(out, "godwit ") {
		t.Errorf("godwit version: %s", out)
	}

	if err := os.WriteFile(conf, []byte("# mine\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	command(t, top, "make", append(args, "install")...)
	command(t, top, "make", append(args, "uninstall")...)
	if d := cmp.Diff([]string{config}, tree(t, dir)); d != "" {
		t.Errorf("left by make uninstall (-want +got):\n%s", d)
	}
	if text, err := os.ReadFile(conf); err != nil || string(text) != "# mine\n" {
		t.Errorf("the configuration is not the administrator's: %v\n%s", err, text)
	}
}

// What the administrator has changed stays, also the drop-in of containerd. While there are VMs of this node, make
// uninstall refuses: without the shim they cannot be deleted.
func TestMakeKeepsWhatIsYours(t *testing.T) {
	top, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	args := []string{"--no-print-directory", "DESTDIR=" + dir, "PREFIX=/opt/godwit"}
	command(t, top, "make", append(args, "install")...)
	const mine = "# for containerd 2.4\n"
	if err := os.WriteFile(filepath.Join(dir, dropIn), []byte(mine), 0o600); err != nil {
		t.Fatal(err)
	}
	command(t, top, "make", append(args, "install")...)
	same := func(when string) {
		t.Helper()
		if text, err := os.ReadFile(filepath.Join(dir, dropIn)); err != nil || string(text) != mine {
			t.Errorf("%s: %s has %q: %v", when, dropIn, text, err)
		}
	}
	same("after another install")

	journal := filepath.Join(dir, "/var/lib/godwit/vms/default/web/node.json")
	if err := os.MkdirAll(filepath.Dir(journal), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(journal, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "make", append(args, "uninstall")...)
	cmd.Dir = top
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), journal) ||
		!strings.Contains(string(out), "godwit rm") {
		t.Errorf("with a VM: %v: %s", err, out)
	}
	if _, err := os.Stat(filepath.Join(dir, "/opt/godwit/bin/containerd-shim-godwit-v1")); err != nil {
		t.Errorf("the shim of a VM is gone: %v", err)
	}

	if err := os.Remove(journal); err != nil {
		t.Fatal(err)
	}
	command(t, top, "make", append(args, "uninstall")...)
	same("after make uninstall")
	if d := cmp.Diff([]string{dropIn, config}, tree(t, dir)); d != "" {
		t.Errorf("left by make uninstall (-want +got):\n%s", d)
	}
}

// make uninstall looks for VMs where the configuration has the state.
func TestUninstallLooksWhereTheStateIs(t *testing.T) {
	top, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	journal := filepath.Join(dir, "data/godwit/vms/default/web/node.json")
	for path, text := range map[string]string{
		filepath.Join(dir, config): "state_dir = '/elsewhere'\n", journal: "{}",
		filepath.Join(dir, "etc/godwit/config.d/state.toml"): "\tstate_dir=\"/data/godwit\" # a disk of its own\n",
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "make", "--no-print-directory", "DESTDIR="+dir, "uninstall")
	cmd.Dir = top
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), journal) {
		t.Errorf("with a VM: %v: %s", err, out)
	}
}
