//go:build integration

package qemu

import (
	"cmp"
	"os"
	"path/filepath"
	"testing"
	"time"

	"godwit.dev/godwit/vmm/vmmtest"
)

// TestConformance runs the suite on real VMs.
func TestConformance(t *testing.T) {
	vmmtest.Run(t, realEnv(t, Driver{Accel: os.Getenv("GODWIT_ACCEL")}))
}

// TestAborts: a pause or a save that is called off, whenever that is, gives the VM back.
func TestAborts(t *testing.T) {
	if err := vmmtest.Aborts(t.Context(), realEnv(t, Driver{Accel: os.Getenv("GODWIT_ACCEL")})); err != nil {
		t.Fatal(err)
	}
}

func realEnv(t *testing.T, d Driver) vmmtest.Env {
	t.Helper()
	driver, err := New(d)
	if err != nil {
		t.Fatal(err)
	}
	facts, err := driver.Probe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", facts)
	dir, err := os.MkdirTemp("/dev/shm", "vmm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	guest := filepath.Join("..", "..", "bin", "guest")
	modules := cmp.Or(os.Getenv("GODWIT_GUEST_MODULES"), filepath.Join(guest, "modules"))
	initrd := filepath.Join(dir, "initrd")
	if err := vmmtest.BuildInitrd(initrd, "/bin/busybox", modules); err != nil {
		t.Fatal(err)
	}
	return vmmtest.Env{
		Driver: driver, Kernel: cmp.Or(os.Getenv("GODWIT_GUEST_KERNEL"), filepath.Join(guest, "vmlinuz")), Initrd: initrd,
		Memory: 256 << 20, VCPUs: 1, User: vmmtest.FirstUser,
		DiskSlot: FirstDiskSlot, NICSlot: FirstNICSlot, HotSlot: FirstHotSlot,
		Dir: dir, NetNS: vmmtest.OpenNetNS, Tap: vmmtest.OpenTapIn, Still: 500 * time.Millisecond, Limit: time.Minute,
	}.Here()
}
