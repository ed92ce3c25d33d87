//go:build kvmhost

package cloudhypervisor

import (
	"cmp"
	"os"
	"path/filepath"
	"testing"
	"time"

	"godwit.dev/godwit/vmm/vmmtest"
)

// TestConformance runs the suite on real VMs.
func TestConformance(t *testing.T) { vmmtest.Run(t, realEnv(t)) }

func realEnv(t *testing.T) vmmtest.Env {
	t.Helper()
	driver := New(Driver{Binary: os.Getenv("GODWIT_CLOUD_HYPERVISOR")})
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
	initrd := filepath.Join(dir, "initrd")
	modules := cmp.Or(os.Getenv("GODWIT_GUEST_MODULES"), filepath.Join(guest, "modules"))
	if err := vmmtest.BuildInitrd(initrd, "/bin/busybox", modules); err != nil {
		t.Fatal(err)
	}
	env := vmmtest.Env{
		Driver: driver, Kernel: cmp.Or(os.Getenv("GODWIT_GUEST_KERNEL"), filepath.Join(guest, "vmlinuz")), Initrd: initrd,
		Memory: 256 << 20, VCPUs: 1, DiskSlot: FirstDiskSlot, NICSlot: FirstNICSlot,
		Dir: dir, Tap: vmmtest.OpenTap, Still: 500 * time.Millisecond, Limit: time.Minute,
	}
	if os.Getenv("GODWIT_GROUND") == "nested" {
		// A guest of a guest without KVM: every line takes a second, timers are coarse.
		env.Cmdline, env.Memory = "mitigations=off tsc=reliable", 128<<20
		env.Still, env.Limit = 3*time.Second, 4*time.Minute
	}
	return env
}
