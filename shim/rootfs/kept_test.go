package rootfs

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/containerd/api/types"
)

// A container whose snapshot has no place for a writable disk finds it again in its next task. A container of the same
// name with another snapshot does not, and a disk whose snapshot is gone is swept.
func TestDiskIsKeptForTheNextTask(t *testing.T) {
	top, kept := t.TempDir(), t.TempDir()
	snapshot := func(name string) []*types.Mount {
		dir := filepath.Join(top, "snapshots", name)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		return []*types.Mount{{Type: "bind", Source: dir, Options: []string{"rbind", "rw"}}}
	}
	dst := Paths{Dir: t.TempDir(), Kept: Kept{Dir: filepath.Join(kept, "ns", "vm")}}
	place := func(mounts []*types.Mount) string {
		p, err := readPlan(mounts)
		if err == nil {
			err = p.placeWritable(dst)
		}
		if err != nil {
			t.Fatal(err)
		}
		return p.writable
	}
	one := place(snapshot("1"))
	if err := os.WriteFile(one, []byte("written"), 0o600); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(place(snapshot("1"))); string(data) != "written" {
		t.Errorf("the next task has %q, %v", data, err)
	}
	SweepKept(kept)
	if _, err := os.Stat(one); err != nil {
		t.Errorf("swept while its snapshot is there: %v", err)
	}
	if _, err := os.Stat(place(snapshot("2"))); !os.IsNotExist(err) {
		t.Errorf("another container has the disk of the first: %v", err)
	}
	if err := os.RemoveAll(filepath.Join(top, "snapshots")); err != nil {
		t.Fatal(err)
	}
	SweepKept(kept)
	if _, err := os.Stat(dst.Kept.Dir); err != nil {
		t.Errorf("swept though containerd's directory is not there: %v", err)
	}
	if err := os.Mkdir(filepath.Join(top, "snapshots"), 0o700); err != nil {
		t.Fatal(err)
	}
	SweepKept(kept)
	if _, err := os.Stat(dst.Kept.Dir); !os.IsNotExist(err) {
		t.Errorf("it stays after its snapshot: %v", err)
	}
}

// The disk of a VM that woke is found by the next task of its container, with overlayfs too. One that a task has left
// next to upperdir since is newer.
func TestDiskOfAWokenVMIsKept(t *testing.T) {
	top, vm := t.TempDir(), t.TempDir()
	mounts := []*types.Mount{{Type: "overlay", Source: "overlay", Options: []string{"workdir=" + top + "/work",
		"upperdir=" + top + "/fs", "lowerdir=/lower"}}}
	dst := Paths{Dir: vm, Kept: Kept{Dir: filepath.Join(t.TempDir(), "ns", "vm")}}
	disk := filepath.Join(vm, "rw.img")
	if err := os.WriteFile(disk, []byte("woken"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := dst.Kept.Link(vm, disk); err != nil { // a container that godwitd has made has no snapshot
		t.Fatal(err)
	}
	if _, err := os.Stat(dst.Kept.Dir); !os.IsNotExist(err) {
		t.Errorf("kept without a note: %v", err)
	}
	if err := Note(mounts, vm); err != nil {
		t.Fatal(err)
	}
	if err := dst.Kept.Link(vm, disk); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(vm); err != nil {
		t.Fatal(err)
	}
	p, err := readPlan(mounts)
	if err == nil {
		err = p.placeWritable(dst)
	}
	if data, rerr := os.ReadFile(p.writable); err != nil || string(data) != "woken" {
		t.Errorf("the next task has %q: %v, %v", data, err, rerr)
	}
	beside := filepath.Join(top, writableName)
	if err := os.WriteFile(beside, []byte("newer"), 0o600); err != nil {
		t.Fatal(err)
	}
	if p, err = readPlan(mounts); err == nil {
		err = p.placeWritable(dst)
	}
	if err != nil || p.writable != beside {
		t.Errorf("it is %s, %v", p.writable, err)
	}
}

// A disk whose note cannot be read stays, and no task starts with another one: it may be the container's own.
func TestDiskWhoseNoteCannotBeReadStays(t *testing.T) {
	top := t.TempDir()
	dst := Paths{Dir: t.TempDir(), Kept: Kept{Dir: filepath.Join(t.TempDir(), "ns", "vm")}}
	bound := func() *plan {
		return &plan{own: true, dirs: []string{top}}
	}
	if err := bound().placeWritable(dst); err != nil {
		t.Fatal(err)
	}
	disk, note := filepath.Join(dst.Kept.Dir, keptDisk), filepath.Join(dst.Kept.Dir, keptRoot)
	if err := os.WriteFile(disk, []byte("written"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func() error{
		"it is a directory": func() error { return os.Mkdir(note, 0o700) },
		"it is cut off":     func() error { return os.WriteFile(note, []byte(`{"path":`), 0o600) },
	} {
		if err := os.RemoveAll(note); err != nil {
			t.Fatal(err)
		}
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		upper := &plan{writable: filepath.Join(top, writableName)}
		for mounts, p := range map[string]*plan{"without a place": bound(), "with upperdir": upper} {
			if err := p.placeWritable(dst); err == nil {
				t.Errorf("%s, mounts %s: the disk is %s", name, mounts, p.writable)
			}
		}
		if data, err := os.ReadFile(disk); string(data) != "written" {
			t.Errorf("%s: the disk has %q, %v", name, data, err)
		}
	}
}
