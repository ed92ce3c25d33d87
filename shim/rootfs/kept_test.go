package rootfs

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/api/types"
	"github.com/google/go-cmp/cmp"

	"godwit.dev/godwit/api/spec"
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
	sweep := func() {
		if err := EachKept(kept, func(_, _ string, k Kept) error {
			return k.RemoveOrphan(func(bool, string) (bool, error) { return true, nil })
		}); err != nil {
			t.Error(err)
		}
	}
	one := place(snapshot("1"))
	if err := os.WriteFile(one, []byte("written"), 0o600); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(place(snapshot("1"))); string(data) != "written" {
		t.Errorf("the next task has %q, %v", data, err)
	}
	sweep()
	if _, err := os.Stat(one); err != nil {
		t.Errorf("swept while its snapshot is there: %v", err)
	}
	if _, err := os.Stat(place(snapshot("2"))); !os.IsNotExist(err) {
		t.Errorf("another container has the disk of the first: %v", err)
	}
	snapshots, unmounted := filepath.Join(top, "snapshots"), filepath.Join(top, "unmounted")
	if err := os.Rename(snapshots, unmounted); err != nil {
		t.Fatal(err)
	}
	sweep()
	if _, err := os.Stat(dst.Kept.Dir); err != nil {
		t.Errorf("swept though containerd's directory is not there: %v", err)
	}
	if err := os.Mkdir(snapshots, 0o700); err != nil {
		t.Fatal(err)
	}
	sweep()
	if _, err := os.Stat(dst.Kept.Dir); err != nil {
		t.Errorf("swept though containerd has another, empty directory: %v", err)
	}
	if err := errors.Join(os.Remove(snapshots), os.Rename(unmounted, snapshots),
		os.Remove(filepath.Join(snapshots, "2"))); err != nil {
		t.Fatal(err)
	}
	sweep()
	if _, err := os.Stat(dst.Kept.Dir); !os.IsNotExist(err) {
		t.Errorf("it stays after its snapshot: %v", err)
	}
}

func containerSet(disk string) *Set {
	return &Set{Disks: []spec.Disk{{ID: "rw", Type: "ext4"}}, Writable: "rw", Paths: map[string]string{"rw": disk}}
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
	if err := dst.Kept.Link(vm, containerSet(disk)); err != nil { // it was booted
		t.Fatal(err)
	}
	if _, err := os.Stat(dst.Kept.Dir); !os.IsNotExist(err) {
		t.Errorf("kept without a note: %v", err)
	}
	if err := Note(mounts, vm, ""); err != nil {
		t.Fatal(err)
	}
	if err := dst.Kept.Link(vm, containerSet(disk)); err != nil {
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

// A crash in the middle of keeping leaves the rest to the next try: the end of the task links again what is not there,
// and takes what is there as it is.
func TestKeepingIsRepeated(t *testing.T) {
	top, vm := t.TempDir(), t.TempDir()
	mounts := []*types.Mount{{Type: "overlay", Source: "overlay", Options: []string{"workdir=" + top + "/work",
		"upperdir=" + top + "/fs", "lowerdir=/lower"}}}
	if err := Note(mounts, vm, ""); err != nil {
		t.Fatal(err)
	}
	files := &Set{Disks: []spec.Disk{{ID: "disk", Type: spec.TypeRaw}, {ID: "nvram", Type: spec.TypeNVRAM}},
		Paths: map[string]string{}}
	for _, d := range files.Disks {
		files.Paths[d.ID] = filepath.Join(vm, d.ID+".img")
		if err := os.WriteFile(files.Paths[d.ID], []byte("woken"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	k := Kept{Dir: filepath.Join(t.TempDir(), "ns", "vm")}
	for what, crash := range map[string]func() error{
		"nothing": func() error { return nil }, "no disk": func() error { return os.Remove(filepath.Join(k.Dir, DiskName)) },
		"no nvram":     func() error { return os.Remove(filepath.Join(k.Dir, NVRAMName)) },
		"no note":      func() error { return os.Remove(filepath.Join(k.Dir, keptRoot)) },
		"no directory": k.Remove,
	} {
		if err := k.Link(vm, files); err != nil {
			t.Fatal(err)
		}
		if err := crash(); err != nil {
			t.Fatal(err)
		}
		if err := k.Link(vm, files); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		dir, err := WritableDir(mounts, vm, k)
		if err != nil || dir != k.Dir {
			t.Errorf("%s: the next task looks in %s, %v", what, dir, err)
		}
		for _, name := range []string{DiskName, NVRAMName} {
			if data, err := os.ReadFile(filepath.Join(dir, name)); string(data) != "woken" {
				t.Errorf("%s: %s has %q, %v", what, name, data, err)
			}
		}
	}
}

// A free of the VM's own files that was killed half way takes nothing from what is kept.
func TestKeptStaysWhenTheFirstNameIsGone(t *testing.T) {
	vm := t.TempDir()
	disk := filepath.Join(vm, "rw.img")
	if err := os.WriteFile(disk, []byte("woken"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Note(nil, vm, "db/1"); err != nil {
		t.Fatal(err)
	}
	k := Kept{Dir: filepath.Join(t.TempDir(), "ns", "vm")}
	if err := k.Link(vm, containerSet(disk)); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(disk); err != nil {
		t.Fatal(err)
	}
	if err := k.Link(vm, containerSet(disk)); err != nil {
		t.Error(err)
	}
	set, err := k.Whole("db/1")
	if err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(set.Paths["rw"]); string(data) != "woken" {
		t.Errorf("%q, %v", data, err)
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
	disk, note := filepath.Join(dst.Kept.Dir, KeptDisk), filepath.Join(dst.Kept.Dir, keptRoot)
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

// A VM that came from another node has no root file system of containerd here. The next task of its container finds all
// disks, each with its content. One of them that is missing is an error, and no empty disk.
func TestDisksOfAContainerWithoutRootAreKept(t *testing.T) {
	vm := t.TempDir()
	set := &Set{Disks: []spec.Disk{{ID: "layer0", Type: "erofs", ReadOnly: true, Digest: "sha256:aa", Size: 5},
		{ID: "rw", Type: "ext4", Size: 4}}, Layers: []string{"layer0"}, Writable: "rw", Paths: map[string]string{}}
	for _, d := range set.Disks {
		set.Paths[d.ID] = filepath.Join(vm, d.ID+".img")
		if err := os.WriteFile(set.Paths[d.ID], []byte(d.ID), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	k := Kept{Dir: filepath.Join(t.TempDir(), "ns", "vm")}
	if got, err := k.Whole("db/1"); got != nil || err != nil {
		t.Errorf("before: %v, %v", got, err)
	}
	if err := Note(nil, vm, "db/1"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := k.Link(vm, set); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.RemoveAll(vm); err != nil {
		t.Fatal(err)
	}
	got, err := k.Whole("db/1")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(set.Disks, got.Disks); diff != "" || got.Writable != "rw" || len(got.Layers) != 1 {
		t.Errorf("%+v (-want +got):\n%s", got, diff)
	}
	for id, path := range got.Paths {
		if data, err := os.ReadFile(path); string(data) != id {
			t.Errorf("disk %s has %q, %v", id, data, err)
		}
	}
	if other, err := k.Whole("db/2"); other != nil || err != nil {
		t.Errorf("another container of that name has %+v, %v", other, err)
	}
	if err := os.Remove(got.Paths["rw"]); err != nil {
		t.Fatal(err)
	}
	if got, err := k.Whole("db/1"); err == nil {
		t.Errorf("without its writable disk: %+v", got)
	}
}

// What is kept goes once the container and its root file system are proved to be gone. An error of who is asked, and a
// new container that comes in between, keep it.
func TestOrphanIsRemovedOnProof(t *testing.T) {
	for name, c := range map[string]struct {
		root   string // below a directory that is there
		absent func(k Kept, call int) (bool, error)
		stays  bool
	}{
		"gone":              {"gone", func(Kept, int) (bool, error) { return true, nil }, false},
		"came from a node":  {"", func(Kept, int) (bool, error) { return true, nil }, false},
		"there":             {"gone", func(Kept, int) (bool, error) { return false, nil }, true},
		"not known":         {"", func(Kept, int) (bool, error) { return false, os.ErrDeadlineExceeded }, true},
		"snapshot is there": {"there", func(Kept, int) (bool, error) { return true, nil }, true},
		"is made anew": {"gone", func(k Kept, _ int) (bool, error) {
			return true, k.begin(root{Path: "/proc", Inode: 7})
		}, true},
		"comes anew": {"", func(_ Kept, call int) (bool, error) { return call == 1, nil }, true},
		"not known any more": {"", func(_ Kept, n int) (bool, error) {
			return n == 1, []error{nil, os.ErrClosed}[n-1]
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			top := t.TempDir()
			if err := os.Mkdir(filepath.Join(top, "there"), 0o700); err != nil {
				t.Fatal(err)
			}
			var r root
			if c.root != "" {
				dir, err := os.Open(top)
				if err != nil {
					t.Fatal(err)
				}
				defer dir.Close()
				r = root{Path: filepath.Join(top, c.root), Inode: 5, Parent: directoryID(dir)}
			}
			k := Kept{Dir: filepath.Join(top, "disks", "ns", "vm")}
			if err := k.begin(r); err != nil {
				t.Fatal(err)
			}
			calls := 0
			err := EachKept(filepath.Join(top, "disks"), func(_, _ string, k Kept) error {
				return k.RemoveOrphan(func(bool, string) (bool, error) { calls++; return c.absent(k, calls) })
			})
			if (err != nil) != strings.HasPrefix(name, "not known") {
				t.Errorf("error %v", err)
			}
			left, rerr := os.ReadDir(filepath.Dir(k.Dir))
			if rerr != nil || c.stays != (len(left) == 1) || c.stays && left[0].Name() != "vm" {
				t.Errorf("left: %v, %v", left, rerr)
			}
		})
	}
}
