//go:build integration

package qemu

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"godwit.dev/godwit/vmm"
	"godwit.dev/godwit/vmm/vmmtest"
)

// TestFullMachineInItsPlace starts a real QEMU with every slot taken, in a network
// namespace of its own.
func TestFullMachineInItsPlace(t *testing.T) {
	env := realEnv(t, Driver{})
	dir := env.Dir
	file := func(name string, size int64) *os.File {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		if err := f.Truncate(size); err != nil {
			t.Fatal(err)
		}
		return f
	}
	ram := file("ram", int64(env.Memory))
	if err := ram.Chown(env.User, -1); err != nil {
		t.Fatal(err)
	}
	cfg := vmm.Config{
		Name: "full", Dir: dir, Memory: env.Memory, VCPUs: 2, RAM: ram,
		Kernel: env.Kernel, Initrd: env.Initrd, Cmdline: "console=ttyS0",
		Agent: filepath.Join(dir, "agent.sock"), NetNS: netns(t),
	}
	for slot := FirstDiskSlot; slot <= LastDiskSlot; slot++ {
		id := "d" + strconv.Itoa(slot)
		cfg.Disks = append(cfg.Disks, vmm.Disk{
			ID: id, Serial: id, Slot: slot, File: file(id, 1<<20), ReadOnly: slot < LastDiskSlot,
		})
	}
	cfg.HotDisks = true
	for slot := FirstHotSlot; slot <= LastHotSlot; slot++ {
		id := "h" + strconv.Itoa(slot)
		cfg.Disks = append(cfg.Disks, vmm.Disk{ID: id, Serial: id, Slot: slot, File: file(id, 1<<20), ReadOnly: true})
	}
	for slot := FirstNICSlot; slot <= LastNICSlot; slot++ {
		tap, err := vmmtest.OpenTap()
		if err != nil {
			t.Fatal(err)
		}
		defer tap.Close()
		cfg.NICs = append(cfg.NICs, vmm.NIC{
			ID: "net" + strconv.Itoa(slot), Slot: slot, MAC: fmt.Sprintf("52:54:00:00:00:%02x", slot), MTU: 1400, Tap: tap,
		})
	}
	m, err := env.Driver.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := m.Kill(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	if err := m.Resume(t.Context()); err != nil {
		t.Error(err)
	}
	if got := m.Process().NICs; len(got) != len(cfg.NICs) {
		t.Errorf("NICs: %v", got)
	}
	want, err := os.Stat(cfg.NetNS)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.Stat(fmt.Sprintf("/proc/%d/ns/net", m.Process().PID))
	if err != nil || !os.SameFile(got, want) {
		t.Errorf("QEMU is in another network namespace (%v)", err)
	}
}

func netns(t *testing.T) string {
	t.Helper()
	name := "gwt" + strconv.Itoa(os.Getpid())
	if out, err := exec.Command("ip", "netns", "add", name).CombinedOutput(); err != nil {
		t.Fatalf("ip netns add: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("ip", "netns", "del", name).CombinedOutput(); err != nil {
			t.Errorf("ip netns del: %v: %s", err, out)
		}
	})
	return "/run/netns/" + name
}
