package cloudhypervisor

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"
)

// TestSilentGuest (N-21): a guest that does not let go costs the deadline, the NIC stays
// known, and a second call takes note of the eject that came after all.
func TestSilentGuest(t *testing.T) {
	m := startFake(t, fakeVMM(t, "works", 0, "FAKE_SILENT=1"), testConfig(t))
	if err := m.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := m.RemoveNIC(short, "net0"); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("remove: got %v, want DeadlineExceeded", err)
	}
	if got := m.Process().NICs; !slices.Equal(got, []string{"net0"}) {
		t.Errorf("NICs: %v", got)
	}
	if err := m.RemoveNIC(t.Context(), "net0"); err != nil {
		t.Errorf("remove again: %v", err)
	}
}

// TestLateEject (N-21): a NIC whose eject was given up is there until the guest lets go
// after all, and can be plugged in again from then on.
func TestLateEject(t *testing.T) {
	cfg := testConfig(t)
	m := startFake(t, fakeVMM(t, "works", 0, "FAKE_SILENT=1", "FAKE_LATE=3"), cfg)
	if err := m.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := m.RemoveNIC(short, "net0"); !errors.Is(err, context.DeadlineExceeded) { // one look
		t.Fatalf("remove: got %v, want DeadlineExceeded", err)
	}
	if gone, err := m.Ejected(t.Context(), "net0"); gone || err != nil {
		t.Errorf("ejected while the guest has it: %v, %v", gone, err)
	}
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
