package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// The files of the image come to the node, also again. Its configuration stays, and a link that leads out of the node
// is refused.
func TestInstallFromImage(t *testing.T) {
	image, node := t.TempDir(), t.TempDir()
	write(t, image+"/usr/local/bin/godwit", "new", 0o755)
	write(t, image+"/etc/godwit/config.toml", "default", 0o644)
	write(t, node+"/usr/local/bin/godwit", "old", 0o755)
	write(t, node+"/usr/local/bin/godwit.new", "half", 0o600)
	var out strings.Builder
	if err := install(&out, image, node); err != nil {
		t.Fatal(err)
	}
	if said := out.String(); said != "installed /etc/godwit/config.toml\ninstalled /usr/local/bin/godwit\n" {
		t.Errorf("it says %q", said)
	}
	write(t, node+"/etc/godwit/config.toml", "mine", 0o644)
	if err := install(io.Discard, image, node); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"usr/local/bin/godwit": "new", "etc/godwit/config.toml": "mine"} {
		if text, err := os.ReadFile(filepath.Join(node, name)); err != nil || string(text) != want {
			t.Errorf("%s has %q, want %q: %v", name, text, want, err)
		}
	}
	if info, err := os.Stat(node + "/usr/local/bin/godwit"); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if _, err := os.Lstat(node + "/usr/local/bin/godwit.new"); err == nil {
		t.Error("a file under its other name is left")
	}

	write(t, image+"/opt/x", "x", 0o644)
	if err := os.Symlink(t.TempDir(), node+"/opt"); err != nil {
		t.Fatal(err)
	}
	if err := install(io.Discard, image, node); err == nil || !strings.Contains(err.Error(), "install opt/x") {
		t.Errorf("a link out of the node: %v", err)
	}
	if err := install(io.Discard, filepath.Join(image, "none"), node); err == nil ||
		!strings.Contains(err.Error(), "container image") {
		t.Errorf("where there is no image: %v", err)
	}
}

// An install that fails at one file leaves the node with the files of before, all of them, and no other.
func TestInstallThatFails(t *testing.T) {
	image, node := t.TempDir(), t.TempDir()
	write(t, image+"/usr/local/bin/godwit", "new", 0o755)
	write(t, image+"/usr/local/share/godwit/initramfs", "new", 0o644)
	write(t, node+"/usr/local/bin/godwit", "old", 0o755)
	write(t, node+"/usr/local/share/godwit/initramfs", "old", 0o644)
	if err := os.MkdirAll(image+"/usr/local/share/other", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/proc/self/mem", image+"/usr/local/share/other/file"); err != nil { // a read fails
		t.Fatal(err)
	}
	if err := install(io.Discard, image, node); err == nil || !strings.Contains(err.Error(), "other/file") {
		t.Errorf("it ends with %v", err)
	}
	for _, name := range []string{"/usr/local/bin/godwit", "/usr/local/share/godwit/initramfs"} {
		if text, err := os.ReadFile(node + name); err != nil || string(text) != "old" {
			t.Errorf("%s has %q: %v", name, text, err)
		}
	}
	for _, name := range []string{"bin/godwit", "share/godwit/initramfs", "share/other/file"} {
		if _, err := os.Lstat(node + "/usr/local/" + name + ".new"); err == nil {
			t.Errorf("%s.new is left", name)
		}
	}
}
