package cloudhypervisor

import (
	"context"
	"errors"
	"slices"
	"testing"

	"godwit.dev/godwit/vmm/vmmtest"
)

// TestSilentGuest: a guest that does not let go costs the deadline, and the NIC stays known. A second call takes note
// of the eject that came after all.
func TestSilentGuest(t *testing.T) {
	f := fakeVMM(t, "works", 0, "FAKE_SILENT=1")
	m := startFake(t, f, testConfig(t))
	if err := m.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := m.RemoveNIC(f.waiting(t), "net0"); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("remove: got %v, want DeadlineExceeded", err)
	}
	if got := m.Process().NICs; !slices.Equal(got, []string{"net0"}) {
		t.Errorf("NICs: %v", got)
	}
	if err := m.RemoveNIC(t.Context(), "net0"); err != nil {
		t.Errorf("remove again: %v", err)
	}
}

// TestLateEject: a NIC whose eject was given up is there until the guest lets go
// after all, and can be plugged in again from then on.
func TestLateEject(t *testing.T) {
	cfg := testConfig(t)
	f := fakeVMM(t, "works", 0, "FAKE_SILENT=1")
	m := startFake(t, f, cfg)
	if err := m.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := m.RemoveNIC(f.waiting(t), "net0"); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("remove: got %v, want DeadlineExceeded", err)
	}
	if gone, err := m.Ejected(t.Context(), "net0"); gone || err != nil {
		t.Errorf("ejected while the guest has it: %v, %v", gone, err)
	}
	vmmtest.Tell(f.pidFile + lets)
	if gone, err := m.Ejected(t.Context(), "net0"); !gone || err != nil {
		t.Errorf("ejected after the guest has let go: %v, %v", gone, err)
	}
	if err := m.AddNIC(t.Context(), cfg.NICs[0]); err != nil {
		t.Errorf("add after the guest has let go: %v", err)
	}
	if got := m.Process().NICs; !slices.Equal(got, []string{"net0"}) {
		t.Errorf("NICs: %v", got)
	}
}
