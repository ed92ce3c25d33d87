package rootfs

import (
	"os"
	"path/filepath"
	"testing"

	"godwit.dev/godwit/api/spec"
)

// damage makes the note of a kept disk one that cannot be read.
func damage(t *testing.T, dir string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, keptRoot), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A note aside that cannot be read may be that of the container: its VM does not boot with an empty disk.
func TestDamagedNoteAside(t *testing.T) {
	r := root{Path: "/snapshots/1", Inode: 7, Birth: "1.0"}
	_, k := asideOf(t, r)
	damage(t, k.aside().Dir)
	if path, err := k.find(r, KeptDisk); path != "" || err == nil {
		t.Errorf("found %q, %v", path, err)
	}
	if path, err := k.place(r, KeptDisk); err == nil {
		t.Errorf("placed %q", path)
	}
	if _, err := os.Stat(filepath.Join(k.aside().Dir, KeptDisk)); err != nil {
		t.Error(err)
	}
}

// What a VM that woke writes takes the place of no disk whose note cannot be read.
func TestDamagedNoteIsNotReplaced(t *testing.T) {
	dir := t.TempDir()
	k := Kept{Dir: filepath.Join(dir, "disks", "ns", "vm")}
	if err := k.begin(root{}); err != nil {
		t.Fatal(err)
	}
	disk, noted := filepath.Join(dir, "disk"), filepath.Join(dir, "noted")
	for path, text := range map[string]string{disk: "new", filepath.Join(k.Dir, KeptDisk): "written"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	damage(t, k.Dir)
	if err := os.MkdirAll(noted, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(noted, keptRoot), []byte(`{"container": "c"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	set := &Set{Disks: []spec.Disk{{ID: "rw"}}, Writable: "rw", Paths: map[string]string{"rw": disk}}
	if err := k.Link(noted, set); err == nil {
		t.Error("the disk of a VM that woke is kept in the place of another")
	}
	if data, err := os.ReadFile(filepath.Join(k.Dir, KeptDisk)); string(data) != "written" {
		t.Errorf("the disk has %q, %v", data, err)
	}
}
