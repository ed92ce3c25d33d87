//go:build integration

package install

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"godwit.dev/godwit/integration/harness"
)

// builtTree is what make install takes, as it is once all was built.
func builtTree(t *testing.T) (dir string) {
	t.Helper()
	top, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	put := func(name string, text []byte) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"Makefile", "packaging/config.toml", "packaging/godwitd.service",
		"packaging/containerd-godwit.toml"} {
		text, err := os.ReadFile(filepath.Join(top, name))
		if err != nil {
			t.Fatal(err)
		}
		put(name, text)
	}
	for _, name := range []string{"containerd-shim-godwit-v1", "godwitd", "godwit", "guest/vmlinuz", "guest/initramfs",
		"share/man/a.1", "share/man/a.5", "share/man/a.8", "share/completion/bash", "share/completion/zsh",
		"share/completion/fish"} {
		put("bin/"+name, nil)
	}
	return dir
}

// An unchanged drop-in follows the build, and goes with it. What was changed stays, and that is said.
func TestMakeDropIn(t *testing.T) {
	for name, c := range map[string]struct {
		edited string // the drop-in after the first install; empty: it is not touched
		stays  bool
	}{"untouched": {}, "changed": {edited: "# mine\n", stays: true}} {
		t.Run(name, func(t *testing.T) {
			top, dir := builtTree(t), t.TempDir()
			run := func(target string) string {
				t.Helper()
				cmd := exec.CommandContext(t.Context(), "make", "--no-print-directory", "-o", "build", "-o", "guest", "-o",
					"man", "DESTDIR="+dir, "PREFIX=/opt/godwit", target)
				cmd.Dir = top
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Fatalf("make %s: %v: %s", target, err, out)
				}
				return string(out)
			}
			is := func() string {
				text, err := os.ReadFile(filepath.Join(dir, dropIn))
				if err != nil && !os.IsNotExist(err) {
					t.Fatal(err)
				}
				return string(text)
			}
			run("install")
			if c.edited != "" {
				if err := os.WriteFile(filepath.Join(dir, dropIn), []byte(c.edited), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			const next = "# of the next build\n"
			if err := os.WriteFile(filepath.Join(top, "packaging/containerd-godwit.toml"), []byte(next), 0o600); err != nil {
				t.Fatal(err)
			}
			said := run("install")
			if want := map[bool]string{true: c.edited, false: next}[c.stays]; is() != want {
				t.Errorf("after the install of the next build: %q, want %q", is(), want)
			}
			if strings.Contains(said, "is not as it was installed, and stays") != c.stays {
				t.Errorf("the next install says %s", said)
			}
			// make uninstall of another build yet
			if err := os.WriteFile(filepath.Join(top, "packaging/containerd-godwit.toml"), []byte("#\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			run("uninstall")
			if is() != c.edited {
				t.Errorf("after make uninstall: %q, want %q", is(), c.edited)
			}
		})
	}
}
