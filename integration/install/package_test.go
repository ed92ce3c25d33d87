//go:build integration

package install

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"godwit.dev/godwit/integration/harness"
)

// programs are those that a node has.
var programs = []string{"containerd-shim-godwit-v1", "godwitd", "godwit"}

// built is the package that `make package` has built.
func built(t *testing.T) (top, deb string) {
	t.Helper()
	top, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	all, err := filepath.Glob(filepath.Join(top, "out", "godwit_*.deb"))
	if err != nil || len(all) != 1 {
		t.Fatalf("out/ has %d packages, want one (make package): %v", len(all), err)
	}
	return top, all[0]
}

// The same tree gives the same bytes of each package and of the parts list, whenever and wherever it is
// laid out.
func TestPackageIsReproducible(t *testing.T) {
	top, _ := built(t)
	dir := t.TempDir()
	command(t, top, "tools/package.sh", dir)
	all, err := os.ReadDir(dir)
	if err != nil || len(all) != 3 {
		t.Fatalf("tools/package.sh makes %d files, want a deb, an RPM and their parts list: %v", len(all), err)
	}
	for _, file := range all {
		first, err := os.ReadFile(filepath.Join(top, "out", file.Name()))
		if err != nil {
			t.Fatal(err)
		}
		second, err := os.ReadFile(filepath.Join(dir, file.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(first, second) {
			diff, _ := exec.Command("bash", "-c",
				`diff <(dpkg-deb -c "$1" || rpm -qplv "$1") <(dpkg-deb -c "$2" || rpm -qplv "$2")`, "-",
				filepath.Join(top, "out", file.Name()), filepath.Join(dir, file.Name())).CombinedOutput()
			t.Errorf("two of one tree differ, %s (%d and %d bytes):\n%s", file.Name(), len(first), len(second), diff)
		}
	}
}

// older is deb as an earlier release would have been: an older version, a file that is no
// more, and a drop-in that has changed since.
func older(t *testing.T, deb string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "older")
	command(t, "", "dpkg-deb", "--raw-extract", deb, dir)
	for name, edit := range map[string]func(string) string{
		"DEBIAN/control": func(s string) string {
			lines := strings.SplitAfter(s, "\n")
			for i, l := range lines {
				if strings.HasPrefix(l, "Version: ") {
					lines[i] = "Version: 0~0-1\n"
				}
			}
			return strings.Join(lines, "")
		},
		"etc/containerd/conf.d/godwit.toml": func(s string) string { return s + "# of an earlier release\n" },
		"usr/share/godwit/no-more":          func(string) string { return "of an earlier release\n" },
		"DEBIAN/md5sums":                    func(string) string { return "" },
	} {
		path := filepath.Join(dir, name)
		text, err := os.ReadFile(path)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(edit(string(text))), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	command(t, "", "dpkg-deb", "--build", "-Znone", dir)
	return dir + ".deb"
}

const (
	config  = "/etc/godwit/config.toml"
	dropIn  = "/etc/containerd/conf.d/godwit.toml"
	wanted  = "/etc/systemd/system/multi-user.target.wants/godwitd.service"
	journal = "/var/lib/godwit/vms/default/web/node.json"
)

// The life of the package on a machine: installed, upgraded, removed, purged. Each part
// goes on where the one before has ended.
func TestPackage(t *testing.T) {
	_, deb := built(t)
	r := newRoot(t)
	clean := r.changed(t)
	for _, part := range []struct {
		name string
		test func(*testing.T, *root, string)
	}{
		{"installed", installed}, {"upgraded", upgraded}, {"removed", removed}, {"purged", purged},
	} {
		if !t.Run(part.name, func(t *testing.T) { part.test(t, r, deb) }) {
			return
		}
	}
	if d := cmp.Diff(clean, r.changed(t)); d != "" {
		t.Errorf("the machine is not as it was (-before +after):\n%s", d)
	}
}

func installed(t *testing.T, r *root, deb string) {
	r.install(t, deb)
	for _, args := range [][]string{
		{"godwit", "version", "--json"}, {"godwitd", "-version", "-json"}, {"containerd-shim-godwit-v1", "-v", "-json"},
	} {
		var v struct {
			Program, Version, Commit string
			Protocols                map[string]int
		}
		if err := json.Unmarshal([]byte(r.run(t, args...)), &v); err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		if v.Version == "devel" || len(v.Commit) < 40 || v.Protocols["journal"] == 0 || v.Protocols["machine"] == 0 {
			t.Errorf("%v says %+v", args, v)
		}
	}
	if out := r.run(t, "dpkg", "--verify", "godwit"); out != "" {
		t.Errorf("dpkg --verify: %s", out)
	}
	// The configuration is read, or the socket that it names would not be known: exit 6.
	if out, err := r.try("godwit", "ps"); err == nil || !strings.Contains(out, "/run/godwit/godwitd.sock") ||
		!strings.Contains(err.Error(), "exit status 6") {
		t.Errorf("godwit ps without a daemon: %v, %s", err, out)
	}
	for _, page := range []string{"1 godwit", "1 godwit-hibernate", "1 godwit-node-join", "5 godwit-config", "8 godwitd",
		"8 containerd-shim-godwit-v1"} {
		section, name, _ := strings.Cut(page, " ")
		if out := r.run(t, "man", "-w", section, name); !strings.Contains(out,
			"/usr/share/man/man"+section+"/"+name+"."+section) {
			t.Errorf("man -w %s: %s", page, out)
		}
	}
	flags, _ := r.try("godwitd", "-h")
	page := r.run(t, "man", "8", "godwitd")
	for _, m := range regexp.MustCompile(`(?m)^  (-\w+)`).FindAllString(flags, -1) {
		if !strings.Contains(page, strings.TrimSpace(m)) {
			t.Errorf("godwitd(8) does not have %s", m)
		}
	}
	for _, file := range []string{
		"/usr/share/bash-completion/completions/godwit", "/usr/share/zsh/vendor-completions/_godwit",
		"/usr/share/fish/vendor_completions.d/godwit.fish", "/usr/share/doc/godwit/copyright",
		"/usr/share/doc/godwit/docs/how-to/install.md", "/usr/share/godwit/vmlinuz", wanted,
	} {
		if !r.has(file) {
			t.Errorf("there is no %s", file)
		}
	}
	if out := r.run(t, "systemd-analyze", "verify", "/lib/systemd/system/godwitd.service"); out != "" {
		t.Errorf("systemd-analyze verify: %s", out)
	}
	r.run(t, "dpkg", "--purge", "godwit")
}

// upgraded: what the administrator has changed stays, what only we have changed follows,
// and a unit that was disabled is not enabled again.
func upgraded(t *testing.T, r *root, deb string) {
	r.install(t, older(t, deb))
	if !r.has(wanted) {
		t.Error("the unit is not enabled")
	}
	r.write(t, config, "# mine\n[log]\nlevel = \"debug\"\n")
	r.write(t, journal, "{}")
	r.run(t, "systemctl", "--root=/", "disable", "godwitd.service")
	r.install(t, deb)
	if out := r.run(t, "cat", config); !strings.HasPrefix(out, "# mine\n") {
		t.Errorf("the configuration is not the administrator's: %s", out)
	}
	if out := r.run(t, "cat", dropIn); strings.Contains(out, "earlier release") {
		t.Errorf("the drop-in did not follow: %s", out)
	}
	if r.has("/usr/share/godwit/no-more") {
		t.Error("a file of the older release is left")
	}
	if r.has(wanted) {
		t.Error("the unit was disabled and is enabled again")
	}
	if out := r.run(t, "dpkg-query", "-W", "-f=${db:Status-Abbrev}${Version}", "godwit"); !strings.HasPrefix(out, "ii ") ||
		strings.HasSuffix(out, " 0~0-1") {
		t.Errorf("dpkg says %q", out)
	}
	if out := r.run(t, "sh", "-c", "dpkg --verify godwit || true"); strings.TrimSpace(out) != "??5?????? c "+config {
		t.Errorf("dpkg --verify: %s", out)
	}
	if !r.has(journal) {
		t.Error("the state of a VM is gone")
	}
}

func removed(t *testing.T, r *root, _ string) {
	if out := r.run(t, "dpkg", "--remove", "godwit"); !strings.Contains(out, "VMs of this node are left as they are") {
		t.Errorf("the removal says nothing of the VMs: %s", out)
	}
	for file, want := range map[string]bool{
		config: true, dropIn: true, journal: true, "/usr/bin/godwit": false, "/usr/bin/godwitd": false,
		"/usr/bin/containerd-shim-godwit-v1": false, "/usr/share/godwit": false, "/usr/share/doc/godwit": false,
	} {
		if r.has(file) != want {
			t.Errorf("%s is there: %t, want %t", file, !want, want)
		}
	}
}

// purged: the configuration goes, the state of a VM never does; without one no file of
// ours is left.
func purged(t *testing.T, r *root, deb string) {
	if out := r.run(t, "dpkg", "--purge", "godwit"); !strings.Contains(out, "/var/lib/godwit is not empty and stays") {
		t.Errorf("the purge says nothing of the state: %s", out)
	}
	if !r.has(journal) {
		t.Error("the state of a VM is gone")
	}
	if r.has("/etc/godwit") || r.has(dropIn) {
		t.Error("configuration is left")
	}
	r.run(t, "rm", "-r", "/var/lib/godwit/vms")
	r.install(t, deb)
	r.run(t, "dpkg", "--purge", "godwit")
}
