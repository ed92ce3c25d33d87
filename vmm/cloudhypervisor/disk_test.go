package cloudhypervisor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/vmm"
	"godwit.dev/godwit/vmm/vmmtest"
)

func hotDisk(t *testing.T) vmm.Disk {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "hot"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	if err := file.Truncate(1 << 20); err != nil {
		t.Fatal(err)
	}
	return vmm.Disk{ID: "image", Serial: "image", Slot: FirstHotSlot, File: file, ReadOnly: true}
}

// TestDiskID: slot and id of a disk come back from the VMM's id of its device, whatever the caller's id is.
func TestDiskID(t *testing.T) {
	for _, disk := range []vmm.Disk{{ID: "image", Slot: 32}, {ID: "a-b", Slot: 47}, {ID: "-", Slot: 40}} {
		if slot, id, ok := cutHot(hotID(disk)); !ok || slot != disk.Slot || id != disk.ID {
			t.Errorf("%s: got %d, %q, %v", hotID(disk), slot, id, ok)
		}
	}
	for _, device := range []string{"disk-rw", "hot-8-a", "hot-x-a", "hot-32", "nic-net0"} {
		if slot, id, ok := cutHot(device); ok {
			t.Errorf("%s: slot %d, %q", device, slot, id)
		}
	}
}

// TestColdDisksOfHotVM: device numbers that hot disks need are refused to other disks, and to no other one: the first
// slot is the first of every VM.
func TestColdDisksOfHotVM(t *testing.T) {
	used := map[int64]int{}
	for slot := FirstDiskSlot; slot <= LastDiskSlot; slot++ {
		cfg := testConfig(t)
		cfg.HotDisks, cfg.Disks = true, cfg.Disks[:1]
		cfg.Disks[0].Slot = slot
		m, err := fakeVMM(t, "works", 0).Start(t.Context(), cfg)
		if err == nil {
			err = m.Kill(t.Context())
		}
		if fits := slot < FirstDiskSlot+5; fits && err != nil || !fits && !errdefs.IsInvalidArgument(err) {
			t.Errorf("a disk at %d: got %v", slot, err)
		} else if fits {
			used[number(slot)] = slot
		}
	}
	for slot := FirstHotSlot; slot <= LastHotSlot; slot++ {
		if other, ok := used[number(slot)]; ok || number(slot) > LastDiskSlot {
			t.Errorf("slot %d has the device number %d, as slot %d", slot, number(slot), other)
		}
		used[number(slot)] = slot
	}
}

// TestSlotWithADisk: a slot that has a disk is refused before anything changes, and the disk there stays.
func TestSlotWithADisk(t *testing.T) {
	m, disk := startFake(t, fakeVMM(t, "works", 0), testConfig(t)), hotDisk(t)
	if err := errors.Join(m.Resume(t.Context()), m.AddDisk(t.Context(), disk)); err != nil {
		t.Fatal(err)
	}
	disk.ID = "other"
	if err := m.AddDisk(t.Context(), disk); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("add: got %v, want FailedPrecondition", err)
	}
	if got := m.Process().Disks; !slices.Equal(got, []string{"image"}) {
		t.Errorf("disks: %v", got)
	}
}

// TestRefusedDisk: a disk that the VMM refuses is not there.
func TestRefusedDisk(t *testing.T) {
	m, disk := startFake(t, fakeVMM(t, "works", 0), testConfig(t)), hotDisk(t)
	if err := m.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(disk.File.Name()); err != nil { // this VMM opens it by its name
		t.Fatal(err)
	}
	if err := m.AddDisk(t.Context(), disk); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("add: got %v, want FailedPrecondition", err)
	}
	if got := m.Process().Disks; len(got) > 0 {
		t.Errorf("disks: %v", got)
	}
}

// TestSilentGuestKeepsDisk: a guest that does not release a disk costs the deadline, and the disk stays known until
// the guest has released it after all. An adopted VM tells its disks.
func TestSilentGuestKeepsDisk(t *testing.T) {
	f := fakeVMM(t, "works", 0, "FAKE_SILENT=1")
	m := startFake(t, f, testConfig(t))
	if err := errors.Join(m.Resume(t.Context()), m.AddDisk(t.Context(), hotDisk(t))); err != nil {
		t.Fatal(err)
	}
	if err := m.RemoveDisk(f.waiting(t), "image"); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("remove: got %v, want DeadlineExceeded", err)
	}
	adopted, err := f.Adopt(t.Context(), m.Process())
	if err != nil {
		t.Fatal(err)
	}
	if got := adopted.Process().Disks; !slices.Equal(got, []string{"image"}) {
		t.Errorf("disks of an adopted VM: %v", got)
	}
	if gone, err := m.DiskEjected(t.Context(), "image"); gone || err != nil {
		t.Errorf("ejected while the guest has it: %v, %v", gone, err)
	}
	vmmtest.Tell(f.pidFile + lets)
	if gone, err := m.DiskEjected(t.Context(), "image"); !gone || err != nil {
		t.Errorf("ejected after the guest has released it: %v, %v", gone, err)
	}
	if got := m.Process().Disks; len(got) > 0 {
		t.Errorf("disks: %v", got)
	}
}

// places are what a sealed VMM sees.
type places map[int]bool

func (p places) Show(place int, _ *os.File) error {
	p[place] = true
	return nil
}

func (p places) Hide(all ...int) error {
	for _, place := range all {
		delete(p, place)
	}
	return nil
}

// TestDiskThatIsNotSent: a caller who leaves before the VMM is asked, and one who is refused, leave no file with it.
// One whose call has no answer does: the VMM may have the disk.
func TestDiskThatIsNotSent(t *testing.T) {
	for name, tt := range map[string]struct {
		send  sender
		shown bool
	}{
		"not sent": {func(func(context.Context) error) error { return context.Canceled }, false},
		"no answer": {func(call func(context.Context) error) error {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			return call(ctx)
		}, true},
		"refused": { // it has no such file
			func(call func(context.Context) error) error { return call(t.Context()) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			m, disk, seen := startFake(t, fakeVMM(t, "works", 0), testConfig(t)), hotDisk(t), places{}
			if err := m.Resume(t.Context()); err != nil {
				t.Fatal(err)
			}
			m.files, m.confined = seen, true
			if err := m.plugInDisk(disk, tt.send); err == nil || seen[0] != tt.shown {
				t.Errorf("shown %v, %v", seen, err)
			}
			if got := m.Process().Disks; (len(got) > 0) != tt.shown {
				t.Errorf("disks: %v", got)
			}
		})
	}
}
