package shim

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/shim/journal"
)

// A VMM of an earlier build is known by the RAM that it has mapped. It is known also where a link leads to ram_dir, and
// after the file has lost its name.
func TestMappedByALink(t *testing.T) {
	dir := t.TempDir()
	real, link := filepath.Join(dir, "run"), filepath.Join(dir, "var run")
	if err := os.Mkdir(real, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("run", link); err != nil {
		t.Fatal(err)
	}
	j := &journal.Journal{Resources: journal.Resources{RAM: filepath.Join(link, "ram")}}
	f, err := os.Create(j.RAM)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(4096); err != nil {
		t.Fatal(err)
	}
	is := func(want bool, when string) {
		t.Helper()
		if got, err := mapsRAM(j, os.Getpid()); got != want || err != nil {
			t.Errorf("%s: %v, %v, want %v", when, got, err, want)
		}
	}
	is(false, "before")
	ram, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(ram)
	is(true, "mapped")
	if err := os.Remove(j.RAM); err != nil {
		t.Fatal(err)
	}
	is(true, "without a name")
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("var run", link); err != nil {
		t.Fatal(err)
	}
	if yes, err := mapsRAM(j, os.Getpid()); err == nil {
		t.Errorf("a directory that cannot be looked at: %v", yes)
	}
}
