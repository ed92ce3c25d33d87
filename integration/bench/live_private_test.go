package bench

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// What the driver says reaches QEMU as it is, but for where its memory comes from.
func TestOwnRAM(t *testing.T) {
	dir := t.TempDir()
	said := filepath.Join(dir, "said")
	if err := os.WriteFile(filepath.Join(dir, "qemu-system-x86_64"),
		[]byte("#!/bin/sh\nprintf '%s\\n' \"$@\" > "+said+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	path, err := ownRAM(dir, 512)
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"-name", "a b", "-object", "memory-backend-file,id=ram,size=536870912,mem-path=/x,share=on",
		"-append", "quiet $HOME *"}
	run := func(args ...string) ([]byte, error) {
		cmd := exec.CommandContext(t.Context(), path, args...)
		cmd.Env = []string{"PATH=" + dir + ":/bin:/usr/bin"}
		return cmd.CombinedOutput()
	}
	if out, err := run(args...); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	got, err := os.ReadFile(said)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := run("-name", "memory"); err == nil || !strings.Contains(string(out), "memory-backend-file") {
		t.Errorf("without a file: %v: %s", err, out)
	}
	args[3] = "memory-backend-ram,id=ram,size=512M"
	if want := strings.Join(args, "\n") + "\n"; string(got) != want {
		t.Errorf("QEMU hears\n%swanted\n%s", got, want)
	}
}

func TestPrivateRAM(t *testing.T) {
	const size = 37 // of no other mapping
	m, err := unix.Mmap(-1, 0, size<<20, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(m) }()
	if err := unix.Madvise(m, unix.MADV_NOHUGEPAGE); err != nil { // and so no neighbour is joined to it
		t.Fatal(err)
	}
	for i := 0; i < 5<<20; i += 4096 {
		m[i] = 1
	}
	if got, err := privateRAM(os.Getpid(), size); err != nil || got != 5 {
		t.Errorf("%v MiB in use, %v", got, err)
	}
	if got, err := privateRAM(os.Getpid(), size+1); err == nil {
		t.Errorf("%v MiB of a mapping that is not there", got)
	}
}
