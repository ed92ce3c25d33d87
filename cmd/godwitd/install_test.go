package main

import (
	"errors"
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

// faulty fails at one call, or from it on.
type faulty struct {
	*os.Root
	at, calls int
	forGood   bool
}

func (f *faulty) fails() error {
	if f.calls++; f.calls == f.at || f.forGood && f.calls > f.at {
		return os.ErrInvalid
	}
	return nil
}

func (f *faulty) Link(from, to string) error {
	if err := f.fails(); err != nil {
		return err
	}
	return f.Root.Link(from, to)
}

func (f *faulty) Rename(from, to string) error {
	if err := f.fails(); err != nil {
		return err
	}
	return f.Root.Rename(from, to)
}

func (f *faulty) Remove(name string) error {
	if err := f.fails(); err != nil {
		return err
	}
	return f.Root.Remove(name)
}

// An install that fails at any of its steps leaves all files of before, or all new ones. If the node cannot go back
// either, the error says so.
func TestInstallIsAllOrNothing(t *testing.T) {
	files := []string{"share/guest", "share/unit", "bin/a", "bin/b"} // the unit is new
	for _, forGood := range []bool{false, true} {
		failed := 0
		for at := 1; at == failed+1; at++ {
			image, node := t.TempDir(), t.TempDir()
			for _, name := range files {
				write(t, filepath.Join(image, name), "new", 0o755)
				if name != "share/unit" {
					write(t, filepath.Join(node, name), "old", 0o755)
				}
			}
			root, err := os.OpenRoot(node)
			if err != nil {
				t.Fatal(err)
			}
			defer root.Close()
			if err := copyAll(root, image, files); err != nil {
				t.Fatal(err)
			}
			f := &faulty{Root: root, at: at, forGood: forGood}
			err = (&exchange{names: f, sync: f.fails, files: files}).run()
			if err != nil {
				failed = at
			}
			got := ""
			for _, name := range files {
				text, _ := os.ReadFile(filepath.Join(node, name))
				got += string(text) + " "
			}
			mixed := err != nil && strings.Contains(err.Error(), "old and new files")
			if got != "new new new new " && (got != "old  old old " || err == nil) && !(forGood && mixed) {
				t.Errorf("failure %d (for good: %v): the node has %q, %v", at, forGood, got, err)
			}
		}
		if failed < 3*len(files) {
			t.Errorf("only %d steps have failed", failed)
		}
	}
}

// The next install makes up for one that was killed.
func TestInstallAfterOneThatWasKilled(t *testing.T) {
	image, node := t.TempDir(), t.TempDir()
	write(t, image+"/bin/a", "new", 0o755)
	for name, text := range map[string]string{"a": "newer", "a.old": "old", "a.new": "half"} {
		write(t, node+"/bin/"+name, text, 0o755)
	}
	if err := install(io.Discard, image, node); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(node + "/bin")
	text, rerr := os.ReadFile(node + "/bin/a")
	if err != nil || rerr != nil || len(left) != 1 || string(text) != "new" {
		t.Errorf("left %v, %q, %v", left, text, errors.Join(err, rerr))
	}
}
