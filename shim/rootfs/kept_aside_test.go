package rootfs

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// asideOf makes a kept disk that a sweep has put aside, and was killed.
func asideOf(t *testing.T, r root) (top string, k Kept) {
	t.Helper()
	top = filepath.Join(t.TempDir(), "disks")
	k = Kept{Dir: filepath.Join(top, "ns", "vm")}
	if err := k.begin(r); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(k.Dir, KeptDisk), []byte("written"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(k.Dir, filepath.Join(top, "ns", ".gone-vm")); err != nil {
		t.Fatal(err)
	}
	return top, k
}

// What is aside has no proof yet that its container is gone: a sweep asks again, removes it then, and gives it back
// otherwise.
func TestWhatIsAsideIsAskedFor(t *testing.T) {
	for name, c := range map[string]struct {
		absent bool
		err    error
		stays  bool
	}{"there": {false, nil, true}, "not known": {false, os.ErrClosed, true}, "gone": {true, nil, false}} {
		t.Run(name, func(t *testing.T) {
			top, k := asideOf(t, root{})
			err := EachKept(top, func(_, id string, k Kept) error {
				if id != "vm" {
					t.Errorf("asked for %q", id)
				}
				return k.RemoveOrphan(func(bool, string) (bool, error) { return c.absent, c.err })
			})
			if !errors.Is(err, c.err) {
				t.Error(err)
			}
			data, err := os.ReadFile(filepath.Join(k.Dir, KeptDisk))
			if c.stays != (string(data) == "written") {
				t.Errorf("the disk has %q, %v", data, err)
			}
			if left, _ := os.ReadDir(filepath.Join(top, "ns")); c.stays != (len(left) == 1) {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// No other sweep looks while one asks: what it sees may be the disk of a new container, which is given back.
func TestOneSweepAtATime(t *testing.T) {
	top := filepath.Join(t.TempDir(), "disks")
	k := Kept{Dir: filepath.Join(top, "ns", "vm")}
	if err := k.begin(root{}); err != nil {
		t.Fatal(err)
	}
	calls := 0
	err := k.RemoveOrphan(func(bool, string) (bool, error) {
		calls++
		dir, err := os.Open(filepath.Dir(k.Dir))
		if err != nil {
			return false, err
		}
		defer dir.Close()
		if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
			t.Errorf("at call %d another sweep can look: %v", calls, err)
		}
		return calls == 1, nil
	})
	if err != nil || calls != 2 {
		t.Errorf("%d calls, %v", calls, err)
	}
	if _, err := os.Stat(filepath.Join(k.Dir, keptRoot)); err != nil {
		t.Errorf("the disk of the new container: %v", err)
	}
}

// A start finds the disk that a sweep was about to give back.
func TestStartFindsTheDiskThatIsAside(t *testing.T) {
	dir := t.TempDir()
	p := &plan{own: true, dirs: []string{dir}}
	r, _, err := p.rootOf()
	if err != nil {
		t.Fatal(err)
	}
	_, k := asideOf(t, r)
	if err := p.placeWritable(Paths{Kept: k}); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(p.writable); string(data) != "written" {
		t.Errorf("it has %q, %v", data, err)
	}
}

// The number of an inode is used again: a root file system that was made anew under the same path and number is another
// one. A note of an older build has no birth.
func TestRootMadeAnewIsAnother(t *testing.T) {
	note := root{Path: "/snapshots/1", Inode: 7, Birth: "1.000000000"}
	for name, tt := range map[string]struct {
		now  root
		same bool
	}{
		"itself":    {note, true},
		"made anew": {root{Path: "/snapshots/1", Inode: 7, Birth: "2.000000000"}, false},
		"no births": {root{Path: "/snapshots/1", Inode: 7}, true},
		"no root":   {root{Container: "db/1"}, false},
	} {
		if note.same(tt.now) != tt.same {
			t.Errorf("%s: same %v", name, !tt.same)
		}
	}
	old := root{}
	if !old.same(root{Container: "db/1"}) {
		t.Error("a note of an older build is about no container")
	}
}

// A new container of the name takes no disk away of one that may be in another database of containerd. A sweep removes
// it with the proof.
func TestDiskOfAnotherDatabaseIsSpared(t *testing.T) {
	top := filepath.Join(t.TempDir(), "disks")
	k := Kept{Dir: filepath.Join(top, "ns", "vm")}
	if err := k.begin(root{Container: "db/1"}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(k.Dir, KeptDisk), []byte("written"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := &plan{own: true, dirs: []string{t.TempDir()}}
	if err := p.placeWritable(Paths{Kept: k}); err != nil {
		t.Fatal(err)
	}
	if container, rootless, err := k.Rootless(); container != "db/1" || !rootless || err != nil {
		t.Errorf("doctor is told of %q, %v, %v", container, rootless, err)
	}
	aside := filepath.Join(k.aside().Dir, KeptDisk)
	if data, err := os.ReadFile(aside); string(data) != "written" {
		t.Errorf("the disk of the other container: %q, %v", data, err)
	}
	for _, gone := range []bool{false, true} {
		asked := ""
		err := k.RemoveOrphan(func(_ bool, container string) (bool, error) { asked = container; return gone, nil })
		if _, serr := os.Stat(aside); err != nil || asked != "db/1" || gone != os.IsNotExist(serr) {
			t.Errorf("gone %v: asked for %q, %v, %v", gone, asked, err, serr)
		}
	}
}
