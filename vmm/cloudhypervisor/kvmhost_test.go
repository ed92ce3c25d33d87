//go:build kvmhost

package cloudhypervisor

import (
	"cmp"
	"os"
	"path/filepath"
	"testing"
	"time"

	"godwit.dev/godwit/vmm"
	"godwit.dev/godwit/vmm/process"
	"godwit.dev/godwit/vmm/vmmtest"
)

// TestConformance runs the suite on real VMs.
func TestConformance(t *testing.T) { vmmtest.Run(t, realEnv(t)) }

// TestAborts: a pause or a save that is called off, whenever that is, gives the VM back.
func TestAborts(t *testing.T) {
	if err := vmmtest.Aborts(t.Context(), realEnv(t)); err != nil {
		t.Fatal(err)
	}
}

// TestNewerVersion: the state of one version goes on in the newer one that GODWIT_CLOUD_HYPERVISOR2 names.
func TestNewerVersion(t *testing.T) {
	newer := New(Driver{Binary: os.Getenv("GODWIT_CLOUD_HYPERVISOR2")})
	facts, err := newer.Probe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	env := realEnv(t)
	mine, err := env.Driver.Probe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if facts.Version == mine.Version {
		t.Fatalf("both have version %s", mine.Version)
	}
	env.Destination = newer
	elsewhere(t, env)
}

// elsewhere checks that state and RAM go on in another VMM.
func elsewhere(t *testing.T, env vmmtest.Env) {
	t.Helper()
	for _, c := range vmmtest.Clauses() {
		if c.Name != vmmtest.Elsewhere {
			continue
		}
		if err := c.Check(t.Context(), env); err != nil {
			t.Fatal(err)
		}
	}
}

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
		Memory: 256 << 20, VCPUs: 1, User: vmmtest.FirstUser,
		DiskSlot: LastDiskSlot - process.HotPoints, NICSlot: FirstNICSlot, HotSlot: FirstHotSlot,
		Dir: dir, NetNS: vmmtest.OpenNetNS, Tap: vmmtest.OpenTapIn, Still: 500 * time.Millisecond, Limit: time.Minute,
		Filtered: vmmtest.ButTheFirst,
	}.Here()
}

// TestMoreRAM restores elsewhere with two vCPUs: RAM beyond the hole below 4 GiB is two
// ranges of the one file.
func TestMoreRAM(t *testing.T) {
	env := realEnv(t)
	env.VCPUs = 2
	for name, memory := range map[string]uint64{"256 MiB": 256 << 20, "4 GiB": 4 << 30} {
		t.Run(name, func(t *testing.T) {
			env.Memory = memory
			elsewhere(t, env)
		})
	}
}

// TestConversationWithTheRealOne is TestConversation on the real one.
func TestConversationWithTheRealOne(t *testing.T) {
	env := realEnv(t)
	m := startReal(t, env, func(cfg *vmm.Config) { cfg.Incoming = true })
	converse(t, m.Process().Control, env.Dir)
}
