package store_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/migrate/store"
	"godwit.dev/godwit/migrate/transition"
)

// A full disk refuses a record, says what to do, and keeps what it has.
func TestBoltOnAFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("full", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	b, err := store.Open(filepath.Join(dir, "records.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	vm := &nodev1.VM{Namespace: "default", Id: "web"}
	put := func(version uint64, lost string) (*nodev1.Record, error) {
		return b.Apply(t.Context(), vm, version, transition.Change{Record: &nodev1.Record{Vm: vm, Uid: "u", Lost: lost}})
	}
	first, err := put(0, "u")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := put(first.GetVersion(), strings.Repeat("x", 2<<20)); !errdefs.IsResourceExhausted(err) ||
		!strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "make room in state_dir") {
		t.Errorf("2 MiB on a disk of 1 MiB: %.200v", err)
	}
	if now, err := b.Load(t.Context(), vm, transition.Asked{}); err != nil || now.Record.GetLost() != "u" {
		t.Errorf("what it had: %.200v, %v", now, err)
	}
	if _, err := put(first.GetVersion(), "v"); err != nil {
		t.Errorf("a small one: %v", err)
	}
}
