package qemu

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/vmm"
	"godwit.dev/godwit/vmm/qemu/qmptest"
	"godwit.dev/godwit/vmm/vmmtest"
)

// plugCalls are those of AddDisk.
var plugCalls = []string{"add-fd", "blockdev-add", "device_add"}

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

// nothingOf fails if QEMU, or what is written down, still has something of a disk.
func nothingOf(t *testing.T, m *Machine, id string) {
	t.Helper()
	if got := m.Process().Disks; len(got) > 0 {
		t.Errorf("disks in Process: %v", got)
	}
	if there, err := m.present(t.Context(), hotID(id)); err != nil || there {
		t.Errorf("device: %v, %v", there, err)
	}
	if there, err := m.hasNode(t.Context(), diskID(id)); err != nil || there {
		t.Errorf("block node: %v, %v", there, err)
	}
	var sets []any
	if err := m.execute(t.Context(), "query-fdsets", nil, &sets); err != nil || len(sets) > 0 {
		t.Errorf("sets of descriptors: %v, %v", sets, err)
	}
}

// TestDisk: a disk is plugged in and ejected, twice, and nothing of it stays.
func TestDisk(t *testing.T) {
	m, disk := startFake(t, fakeQEMU(t, "works", 0), testConfig(t)), hotDisk(t)
	if err := m.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := m.AddDisk(t.Context(), disk); err != nil {
			t.Fatal(err)
		}
		if got := m.Process().Disks; !slices.Equal(got, []string{"image"}) {
			t.Errorf("disks: %v", got)
		}
		if err := m.AddDisk(t.Context(), disk); !errdefs.IsAlreadyExists(err) {
			t.Errorf("add of what is there: %v", err)
		}
		if err := m.RemoveDisk(t.Context(), "image"); err != nil {
			t.Fatal(err)
		}
		nothingOf(t, m, "image")
	}
}

// TestRefusedDisk: a disk that QEMU refuses, at whichever call, is not there, and leaves nothing in the way
// of the next.
func TestRefusedDisk(t *testing.T) {
	for at, call := range plugCalls {
		t.Run(call, func(t *testing.T) {
			m, disk := startFake(t, fakeQEMU(t, qmptest.Refuse, startCalls+at), testConfig(t)), hotDisk(t)
			if err := m.AddDisk(t.Context(), disk); !errdefs.IsFailedPrecondition(err) {
				t.Errorf("add: got %v, want FailedPrecondition", err)
			}
			nothingOf(t, m, "image")
			if err := m.AddDisk(t.Context(), disk); err != nil {
				t.Errorf("add again: %v", err)
			}
		})
	}
}

// TestDiskWithoutAnswer: a disk whose plug was given up came later, or did not. It counts as there, so that no
// snapshot misses it, and can be removed and plugged in again, whichever call of a plug it was.
func TestDiskWithoutAnswer(t *testing.T) {
	for at, call := range plugCalls {
		t.Run(call, func(t *testing.T) {
			f, disk := fakeQEMU(t, qmptest.Slow, startCalls+2+at), hotDisk(t) // of Resume: query-status, cont
			m := startFake(t, f, testConfig(t))
			if err := m.Resume(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := m.AddDisk(f.waiting(t), disk); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("add: got %v, want DeadlineExceeded", err)
			}
			if got := m.Process().Disks; !slices.Equal(got, []string{"image"}) {
				t.Errorf("disks: %v", got)
			}
			vmmtest.Tell(f.pidFile + lets)
			if err := m.RemoveDisk(t.Context(), "image"); err != nil {
				t.Fatal(err)
			}
			nothingOf(t, m, "image")
			if err := m.AddDisk(t.Context(), disk); err != nil {
				t.Errorf("add again: %v", err)
			}
		})
	}
}

// TestSilentGuestKeepsDisk: a guest that does not release a disk costs the deadline, and the disk stays known
// until the guest has released it after all.
func TestSilentGuestKeepsDisk(t *testing.T) {
	f := fakeQEMU(t, "works", 0, "FAKE_SILENT=1")
	m, disk := startFake(t, f, testConfig(t)), hotDisk(t)
	if err := errors.Join(m.Resume(t.Context()), m.AddDisk(t.Context(), disk)); err != nil {
		t.Fatal(err)
	}
	if err := m.RemoveDisk(f.waiting(t), "image"); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("remove: got %v, want DeadlineExceeded", err)
	}
	if gone, err := m.DiskEjected(t.Context(), "image"); gone || err != nil {
		t.Errorf("ejected while the guest has it: %v, %v", gone, err)
	}
	vmmtest.Tell(f.pidFile + lets)
	if gone, err := m.DiskEjected(t.Context(), "image"); !gone || err != nil {
		t.Errorf("ejected after the guest has released it: %v, %v", gone, err)
	}
	nothingOf(t, m, "image")
}

// TestAdoptedDisk: an adopted VM tells its disks, and closes one whose eject the earlier shim did not wait for.
func TestAdoptedDisk(t *testing.T) {
	f, disk := fakeQEMU(t, "works", 0, "FAKE_SILENT=1"), hotDisk(t)
	started, err := f.Start(t.Context(), testConfig(t))
	if err != nil {
		t.Fatal(err)
	}
	m := started.(*Machine)
	defer func() {
		if err := m.Kill(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	if err := errors.Join(m.Resume(t.Context()), m.AddDisk(t.Context(), disk)); err != nil {
		t.Fatal(err)
	}
	if err := m.RemoveDisk(f.waiting(t), "image"); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("remove: got %v, want DeadlineExceeded", err)
	}
	adopt := func() {
		p := m.Process()
		if err := m.Detach(); err != nil {
			t.Fatal(err)
		}
		adopted, err := f.Adopt(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		m = adopted.(*Machine)
	}
	adopt()
	if got := m.Process().Disks; !slices.Equal(got, []string{"image"}) {
		t.Errorf("disks of an adopted VM: %v", got)
	}
	vmmtest.Tell(f.pidFile + lets)
	adopt()
	nothingOf(t, m, "image")
}

// TestUsedSlot: a disk is refused a slot that has one, and the disk there stays.
func TestUsedSlot(t *testing.T) {
	m, disk := startFake(t, fakeQEMU(t, "works", 0), testConfig(t)), hotDisk(t)
	if err := errors.Join(m.Resume(t.Context()), m.AddDisk(t.Context(), disk)); err != nil {
		t.Fatal(err)
	}
	other := hotDisk(t)
	other.ID = "other"
	if err := m.AddDisk(t.Context(), other); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("add: got %v, want FailedPrecondition", err)
	}
	if got := m.Process().Disks; !slices.Equal(got, []string{"image"}) {
		t.Errorf("disks: %v", got)
	}
	if err := m.RemoveDisk(t.Context(), "image"); err != nil {
		t.Fatal(err)
	}
	nothingOf(t, m, "other")
}

// TestPlugThatWasCutOff: a shim that dies while it plugs a disk in has written nothing down. The next one closes what
// QEMU has of it, and can plug the disk in.
func TestPlugThatWasCutOff(t *testing.T) {
	for at, call := range plugCalls[1:] {
		t.Run(call, func(t *testing.T) {
			f, disk := fakeQEMU(t, qmptest.Close, startCalls+1+at), hotDisk(t)
			started, err := f.Start(t.Context(), testConfig(t))
			if err != nil {
				t.Fatal(err)
			}
			m := started.(*Machine)
			defer func() {
				if err := m.Kill(context.Background()); err != nil {
					t.Error(err)
				}
			}()
			written := m.Process()
			if err := m.AddDisk(t.Context(), disk); err == nil {
				t.Fatal("add: no error, though QEMU has hung up")
			}
			if err := m.Detach(); err != nil {
				t.Fatal(err)
			}
			adopted, err := f.Adopt(t.Context(), written)
			if err != nil {
				t.Fatal(err)
			}
			m = adopted.(*Machine)
			nothingOf(t, m, "image")
			if err := m.AddDisk(t.Context(), disk); err != nil {
				t.Errorf("add again: %v", err)
			}
		})
	}
}
