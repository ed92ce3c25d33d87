package cloudhypervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/vmm"
	"godwit.dev/godwit/vmm/cloudhypervisor/chtest"
)

// loads starts a fake VMM that waits for its state, and loads one. mapped gets the machine.
func loads(t *testing.T, kind vmm.Tracking, mapped func(*Machine, vmm.Config) error, env ...string) (*Machine, error) {
	t.Helper()
	cfg := testConfig(t)
	var m *Machine
	cfg.Incoming, cfg.Track = true, kind
	cfg.Mapped = func(context.Context) error { return mapped(m, cfg) }
	m = startFake(t, fakeVMM(t, "works", 0, env...), cfg)
	state := filepath.Join(t.TempDir(), "state")
	if err := os.WriteFile(state, frame(savedState(t)), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(state)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	err = m.LoadState(t.Context(), f)
	home, _ := m.workPaths()
	for _, name := range []string{stateFile, configFile, ramFile} {
		if _, err := os.Lstat(filepath.Join(home, name)); err == nil {
			t.Errorf("left behind: %s", name)
		}
	}
	return m, err
}

// savedState is what a fake saves.
func savedState(t *testing.T) []byte {
	t.Helper()
	m := startFake(t, fakeVMM(t, "works", 0), testConfig(t))
	file, err := os.Create(filepath.Join(t.TempDir(), "saved"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := errors.Join(m.Resume(t.Context()), m.Pause(t.Context()), m.SaveState(t.Context(), file)); err != nil {
		t.Fatal(err)
	}
	if _, err := file.Seek(0, 0); err != nil {
		t.Fatal(err)
	}
	state, err := readState(file)
	if err != nil {
		t.Fatal(err)
	}
	return state
}

func hasData(t *testing.T, f *os.File) bool {
	t.Helper()
	_, err := f.Seek(0, unix.SEEK_DATA)
	if err != nil && !errors.Is(err, unix.ENXIO) {
		t.Fatal(err)
	}
	return err == nil
}

// TestRestoreGate: the VMM has mapped RAM, and touched none, where its caller is told so; it touches some afterwards.
func TestRestoreGate(t *testing.T) {
	for _, kind := range []vmm.Tracking{vmm.TrackWrites, vmm.TrackPages} {
		calls, ram := 0, (*os.File)(nil)
		m, err := loads(t, kind, func(m *Machine, cfg vmm.Config) error {
			calls, ram = calls+1, cfg.RAM
			if hasData(t, ram) {
				t.Error("RAM was touched before it could be waited for")
			}
			maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", m.Process().PID))
			if err == nil && !strings.Contains(string(maps), ram.Name()) {
				err = errors.New("RAM is not mapped")
			}
			return err
		})
		if err != nil || calls != 1 || !hasData(t, ram) {
			t.Errorf("%d: load: %v, told %d times", kind, err, calls)
		}
		if err := m.Resume(t.Context()); err != nil {
			t.Error(err)
		}
	}
	never := func(*Machine, vmm.Config) error { t.Error("it is told"); return nil }
	if _, err := loads(t, vmm.NoTracking, never); err != nil {
		t.Error(err)
	}
}

// TestGateRefused: what the caller has to say is the error of the load, and the VM ends as any other.
func TestGateRefused(t *testing.T) {
	no := errors.New("no")
	m, err := loads(t, vmm.TrackPages, func(*Machine, vmm.Config) error { return no })
	if !errors.Is(err, no) {
		t.Errorf("load: %v", err)
	}
	if err := m.Kill(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestGateMissed: a VMM that does not wait fails where it has to, and is known to be untracked elsewhere.
func TestGateMissed(t *testing.T) {
	never := func(*Machine, vmm.Config) error { t.Error("it is told"); return nil }
	_, err := loads(t, vmm.TrackPages, never, "FAKE_HASTY=yes")
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "worker.restore") {
		t.Errorf("load: %v", err)
	}
	if _, err := loads(t, vmm.TrackWrites, never, "FAKE_HASTY=yes"); err != nil {
		t.Error(err)
	}
}

// TestGateOfARefusal: a restore that fails in any way before it comes to RAM is what it is without a gate.
func TestGateOfARefusal(t *testing.T) {
	for _, how := range []string{chtest.Refuse, chtest.Close, chtest.Exit} {
		cfg := testConfig(t)
		cfg.Incoming, cfg.Track = true, vmm.TrackPages
		cfg.Mapped = func(context.Context) error { t.Error("it is told"); return nil }
		m := startFake(t, fakeVMM(t, how, 1), cfg)
		file, err := os.Create(filepath.Join(t.TempDir(), "state"))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if _, err := file.Write(frame(savedState(t))); err != nil {
			t.Fatal(err)
		}
		if _, err := file.Seek(0, 0); err != nil {
			t.Fatal(err)
		}
		if err := m.LoadState(t.Context(), file); err == nil || errors.Is(err, errNoGate) {
			t.Errorf("%s: load: %v", how, err)
		}
	}
}

// TestRangeOfRAM: a state says no more than that some RAM is to be read.
func TestRangeOfRAM(t *testing.T) {
	state := savedState(t)
	gated, err := withRange(state)
	if err != nil {
		t.Fatal(err)
	}
	if err := checkState(state, 2<<20); err != nil {
		t.Error(err)
	}
	if err := checkState(gated, 2<<20); err == nil || !strings.Contains(err.Error(), "wants RAM from a file") {
		t.Errorf("with a range: %v", err)
	}
	for _, bad := range []string{"", "{", `{"snapshots":{}}`,
		`{"snapshots":{"memory-manager":{"snapshot_data":{"state":"x"}}}}`} {
		if _, err := withRange([]byte(bad)); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// TestTakeLease: the lease comes once a process that has the file for a moment has closed it.
func TestTakeLease(t *testing.T) {
	path := filepath.Join(t.TempDir(), ramFile)
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	other, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := setLease(file, unix.F_WRLCK); !errors.Is(err, unix.EAGAIN) {
		t.Fatalf("a lease on an open file: %v", err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := takeLease(gone, file); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("after the end of its caller: %v", err)
	}
	took := make(chan error, 1)
	go func() { took <- takeLease(t.Context(), file) }()
	if err := other.Close(); err != nil {
		t.Error(err)
	}
	if err := <-took; err != nil {
		t.Error(err)
	}
}

// TestHasLeases: the kernel of any test has them.
func TestHasLeases(t *testing.T) {
	if !hasLeases(t.Context()) {
		t.Error("no lease")
	}
}
