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
func TestConformance(t *testing.T) { vmmtest.Run(t, realEnv(t, Driver{})) }

// TestSecondQEMU runs it on those of the QEMU that GODWIT_QEMU2 names (with
// GODWIT_QEMU2_DATA and GODWIT_QEMU2_MODULES), and moves VMs from one to the other and
// back. It is no test of a machine with one QEMU.
func TestSecondQEMU(t *testing.T) {
	binary := os.Getenv("GODWIT_QEMU2")
	if binary == "" {
		return
	}
	first := realEnv(t, Driver{})
	second := realEnv(t, Driver{Binary: binary, DataDir: os.Getenv("GODWIT_QEMU2_DATA"), ModuleDir: os.Getenv("GODWIT_QEMU2_MODULES")})
	vmmtest.Run(t, second)
	moves := map[string]vmmtest.Env{"to the second": first, "to the first": second}
	for name, env := range moves {
		env.Destination = second.Driver
		if name == "to the first" {
			// "max" has features in a newer version that an older one lacks.
			env.Destination, env.CPU = first.Driver, "qemu64"
		}
		t.Run(name, func(t *testing.T) {
			for _, c := range vmmtest.Clauses() {
				if c.Name != vmmtest.Elsewhere {
					continue
				}
				if err := c.Check(t.Context(), env); err != nil {
					t.Fatal(err)
				}
			}
		})
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
		Memory: 256 << 20, VCPUs: 1, DiskSlot: FirstDiskSlot, NICSlot: FirstNICSlot,
		Dir: dir, Tap: openTap, Still: 500 * time.Millisecond, Limit: time.Minute,
	}
}
