//go:build kvmhost

package cloudhypervisor

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"godwit.dev/godwit/vmm"
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
	return vmmtest.Env{
		Driver: driver, Kernel: cmp.Or(os.Getenv("GODWIT_GUEST_KERNEL"), filepath.Join(guest, "vmlinuz")), Initrd: initrd,
		Memory: 256 << 20, VCPUs: 1, DiskSlot: FirstDiskSlot, NICSlot: FirstNICSlot,
		Dir: dir, Tap: vmmtest.OpenTap, Still: 500 * time.Millisecond, Limit: time.Minute,
	}.Here()
}

// TestMoreRAM: RAM beyond the hole below 4 GiB is two ranges of the one file; two vCPUs.
func TestMoreRAM(t *testing.T) {
	env := realEnv(t)
	env.Memory, env.VCPUs = 4<<30, 2
	for _, c := range vmmtest.Clauses() {
		if c.Name != vmmtest.Elsewhere {
			continue
		}
		if err := c.Check(t.Context(), env); err != nil {
			t.Fatal(err)
		}
	}
}

// TestConversationWithTheRealOne is TestConversation on the real one.
func TestConversationWithTheRealOne(t *testing.T) {
	env := realEnv(t)
	ram, err := os.Create(filepath.Join(env.Dir, "ram"))
	if err != nil {
		t.Fatal(err)
	}
	defer ram.Close()
	if err := ram.Truncate(int64(env.Memory)); err != nil {
		t.Fatal(err)
	}
	m, err := env.Driver.Start(t.Context(), vmm.Config{
		Name: "conversation", Dir: env.Dir, Memory: env.Memory, VCPUs: 1, RAM: ram, Agent: filepath.Join(env.Dir, "agent.sock"), Incoming: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := m.Kill(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	converse(t, m.Process().Control, env.Dir)
}
