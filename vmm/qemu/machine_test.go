package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/vmm"
	"godwit.dev/godwit/vmm/process"
	"godwit.dev/godwit/vmm/qemu/qmptest"
	"godwit.dev/godwit/vmm/vmmtest"
)

// startFake starts a fake VM that is killed when the test ends.
func startFake(t *testing.T, f fake, cfg vmm.Config) *Machine {
	t.Helper()
	m, err := f.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Kill(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return m.(*Machine)
}

func save(t *testing.T, m *Machine) (string, error) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	err = m.SaveState(t.Context(), f)
	data, readErr := os.ReadFile(f.Name())
	return string(data), errors.Join(err, readErr)
}

// TestSaveAgain: QEMU saves once per pause, a Machine as often as it is asked to.
func TestSaveAgain(t *testing.T) {
	m := startFake(t, fakeQEMU(t, "works", 0), testConfig(t))
	fds := fdCount(t)
	for range 2 {
		for range 2 {
			if got, err := save(t, m); err != nil || got != qmptest.State {
				t.Fatalf("save: got %q, %v", got, err)
			}
		}
		if err := m.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := save(t, m); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("save while running: got %v, want FailedPrecondition", err)
		}
		if m.lastState() != nil {
			t.Error("state of a pause is kept while the VM runs")
		}
		if err := m.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "descriptors closed", func() bool { return fdCount(t) <= fds })
}

// saveCalls are query-status, getfd, migrate.
const saveCalls = 3

// TestSaveFailsAtEachCall: after a refusal the VM can be saved and resumed, and no
// descriptor stays in either process.
func TestSaveFailsAtEachCall(t *testing.T) {
	for at := range saveCalls + 1 {
		f := fakeQEMU(t, qmptest.Refuse, startCalls+at)
		m := startFake(t, f, testConfig(t))
		pid, err := os.ReadFile(f.pidFile)
		if err != nil {
			t.Fatal(err)
		}
		theirs := func() int {
			entries, err := os.ReadDir("/proc/" + string(pid) + "/fd")
			if err != nil {
				t.Fatal(err)
			}
			return len(entries)
		}
		ours, before := fdCount(t), theirs()
		if _, err := save(t, m); (err == nil) != (at == saveCalls) {
			t.Errorf("call %d: save: %v", at, err)
		}
		if at == saveCalls {
			continue // the next call is the one refused
		}
		if status, err := m.status(t.Context()); err != nil || status == "running" {
			t.Errorf("call %d: status %s, %v", at, status, err)
		}
		eventually(t, "descriptors closed", func() bool { return fdCount(t) <= ours && theirs() <= before })
		if got, err := save(t, m); err != nil && !errdefs.IsFailedPrecondition(err) {
			t.Errorf("call %d: save again: got %q, %v", at, got, err)
		}
		if err := m.Resume(t.Context()); err != nil {
			t.Errorf("call %d: resume: %v", at, err)
		}
	}
}

// An event that does not come, or is lost, costs a question.
func TestSaveUntold(t *testing.T) {
	m := startFake(t, fakeQEMU(t, "untold", 0), testConfig(t))
	if got, err := save(t, m); err != nil || got != qmptest.State {
		t.Errorf("got %q, %v", got, err)
	}
}

// TestSaveIntoFullFile: what goes wrong at the file is not QEMU's.
func TestSaveIntoFullFile(t *testing.T) {
	m := startFake(t, fakeQEMU(t, "works", 0), testConfig(t))
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	if err := m.SaveState(t.Context(), full); err == nil {
		t.Error("save into a full file succeeds")
	}
	if got, err := save(t, m); err != nil || got != qmptest.State {
		t.Errorf("save after it: got %q, %v", got, err)
	}
}

func TestLoad(t *testing.T) {
	tests := []struct {
		name, state string
		incoming    bool
		class       func(error) bool
		dead        bool
	}{
		{"good", qmptest.State, true, func(err error) bool { return err == nil }, false},
		{"not incoming", qmptest.State, false, errdefs.IsFailedPrecondition, false},
		{"empty", "", true, errdefs.IsInvalidArgument, false},
		{"no state", "something else", true, errdefs.IsInvalidArgument, false},
		{"broken", "QEVM broken", true, errdefs.IsUnavailable, true},
	}
	for _, tt := range tests {
		for _, ahead := range []bool{false, tt.incoming} {
			t.Run(fmt.Sprint(tt.name, ", ahead ", ahead), func(t *testing.T) {
				cfg := testConfig(t)
				cfg.Incoming, cfg.Ahead = tt.incoming, ahead
				testLoad(t, cfg, tt.state, tt.class, tt.dead)
			})
		}
	}
}

func testLoad(t *testing.T, cfg vmm.Config, state string, class func(error) bool, dead bool) {
	fds := fdCount(t)
	m := startFake(t, fakeQEMU(t, "works", 0), cfg)
	path := filepath.Join(t.TempDir(), "state")
	if err := os.WriteFile(path, []byte(state), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.LoadState(t.Context(), f); !class(err) {
		t.Errorf("got %v", err)
	}
	f.Close()
	if dead {
		<-m.Done()
	} else if err := m.Kill(t.Context()); err != nil {
		t.Error(err)
	}
	eventually(t, "descriptors closed", func() bool { return fdCount(t) <= fds })
}

// TestRemoveNICAgain: the guest does not react within the first deadline.
func TestRemoveNICAgain(t *testing.T) {
	f := fakeQEMU(t, "works", 0, "FAKE_SILENT=1")
	m := startFake(t, f, testConfig(t))
	if err := m.RemoveNIC(t.Context(), "net0"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("remove from a VM that does not run: got %v, want FailedPrecondition", err)
	}
	if err := m.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := m.RemoveNIC(f.waiting(t), "net0"); !errdefs.IsDeadlineExceeded(err) {
		t.Errorf("remove: got %v, want DeadlineExceeded", err)
	}
	if err := m.RemoveNIC(t.Context(), "net0"); err != nil {
		t.Errorf("remove again: %v", err)
	}
	if err := m.RemoveNIC(t.Context(), "net0"); !errdefs.IsNotFound(err) {
		t.Errorf("remove what is gone: got %v, want NotFound", err)
	}
}

// TestLateEject: a NIC whose eject was given up is there until the guest lets go
// after all, and can be plugged in again from then on.
func TestLateEject(t *testing.T) {
	cfg := testConfig(t)
	f := fakeQEMU(t, "works", 0, "FAKE_SILENT=1")
	m := startFake(t, f, cfg)
	if err := m.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := m.RemoveNIC(f.waiting(t), "net0"); !errdefs.IsDeadlineExceeded(err) {
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

// TestAdoptAfterAnEject: the shim died between the guest's word and the end of the tap's
// backend. The successor that adopts the VM plugs the NIC in again.
func TestAdoptAfterAnEject(t *testing.T) {
	cfg := testConfig(t)
	f := fakeQEMU(t, "works", 0, "FAKE_SILENT=1")
	m, err := f.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	p := m.Process()
	if err := m.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := m.RemoveNIC(f.waiting(t), "net0"); !errdefs.IsDeadlineExceeded(err) {
		t.Fatalf("remove: got %v, want DeadlineExceeded", err)
	}
	vmmtest.Tell(f.pidFile + lets)
	if err := m.(*Machine).Detach(); err != nil {
		t.Fatal(err)
	}
	next, err := f.Adopt(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if got := next.Process().NICs; len(got) != 0 {
		t.Errorf("NICs of the adopted VM: %v", got)
	}
	if err := next.AddNIC(t.Context(), cfg.NICs[0]); err != nil {
		t.Error(err)
	}
	if err := next.Kill(t.Context()); err != nil {
		t.Error(err)
	}
}

// addCalls are getfd, netdev_add, device_add.
const addCalls = 3

// TestAddNICFailsAtEachCall: a refused NIC leaves nothing that would be in the way of
// the next one.
func TestAddNICFailsAtEachCall(t *testing.T) {
	for at := range addCalls + 1 {
		cfg := testConfig(t)
		nic := cfg.NICs[0]
		cfg.NICs = nil
		m := startFake(t, fakeQEMU(t, qmptest.Refuse, startCalls+at), cfg)
		if err := m.AddNIC(t.Context(), nic); (err == nil) != (at == addCalls) {
			t.Errorf("call %d: %v", at, err)
		}
		if at == addCalls {
			continue
		}
		if err := m.AddNIC(t.Context(), nic); err != nil {
			t.Errorf("after call %d: %v", at, err)
		}
		if err := m.AddNIC(t.Context(), nic); !errdefs.IsAlreadyExists(err) {
			t.Errorf("add twice: got %v, want AlreadyExists", err)
		}
	}
}

func TestAdopt(t *testing.T) {
	f, cfg := fakeQEMU(t, "works", 0), testConfig(t)
	m, err := f.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	p := m.Process()
	fds, goroutines := fdCount(t), runtime.NumGoroutine()
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := f.Adopt(short, p); !errdefs.IsDeadlineExceeded(err) {
		t.Errorf("adopt what somebody holds: got %v, want DeadlineExceeded", err)
	}
	eventually(t, "nothing left of it", func() bool { return fdCount(t) <= fds && runtime.NumGoroutine() <= goroutines })
	if err := m.(*Machine).Detach(); err != nil {
		t.Fatal(err)
	}
	forgotten := p
	forgotten.NICs = nil // QEMU knows better
	adopted, err := f.Adopt(t.Context(), forgotten)
	if err != nil {
		t.Fatal(err)
	}
	if got := adopted.Process(); !slices.Equal(got.NICs, []string{"net0"}) {
		t.Errorf("NICs of the adopted VM: %v", got.NICs)
	}
	if err := adopted.Kill(t.Context()); err != nil {
		t.Error(err)
	}
	leftovers(t, cfg, fds, goroutines)
	if _, err := f.Adopt(t.Context(), p); !errdefs.IsNotFound(err) {
		t.Errorf("adopt what is gone: got %v, want NotFound", err)
	}
}

// TestCgroup: the process is in its cgroups; here they are plain directories.
func TestCgroup(t *testing.T) {
	cfg := testConfig(t)
	cfg.Cgroup = []string{t.TempDir(), t.TempDir()}
	m := startFake(t, fakeQEMU(t, "works", 0), cfg)
	for _, dir := range cfg.Cgroup {
		got, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil || string(got) != strconv.Itoa(m.Process().PID) {
			t.Errorf("%s: %q, %v", dir, got, err)
		}
	}
}

// TestInheritsNothingElse: QEMU gets its standard files and what its line names.
func TestInheritsNothingElse(t *testing.T) {
	secret, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer secret.Close()
	cfg := testConfig(t)
	m := startFake(t, fakeQEMU(t, "works", 0), cfg)
	dir := "/proc/" + strconv.Itoa(m.Process().PID)
	// RAM, kernel, initramfs, two sockets, console, two disks, tap. The fake itself, a Go
	// program, has more.
	const last = process.FirstFD + 9 - 1
	for fd, want := range map[int]string{process.FirstFD: "ram", process.FirstFD + 5: "console",
		process.FirstFD + 6: "layer0", last: "tap"} {
		got, err := os.Readlink(filepath.Join(dir, "fd", strconv.Itoa(fd)))
		if err != nil || filepath.Base(got) != want {
			t.Errorf("descriptor %d: %s, %v, want %s", fd, got, err, want)
		}
	}
	env, err := os.ReadFile(filepath.Join(dir, "environ"))
	if err != nil || strings.Contains(string(env), "HOME=") {
		t.Errorf("environment: %q, %v", env, err)
	}
}

// A monitor that hangs may answer later. One whose connection has ended does not, while QEMU lives.
func TestResumeWithoutItsMonitor(t *testing.T) {
	m := startFake(t, fakeQEMU(t, "works", 0), testConfig(t))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.Resume(ctx); !errors.Is(err, vmm.ErrNotResumed) || errors.Is(err, vmm.ErrUnreachable) {
		t.Errorf("no answer in time: %v", err)
	}
	if err := m.qmp.Close(); err != nil {
		t.Fatal(err)
	}
	if err := m.Resume(t.Context()); !errors.Is(err, vmm.ErrNotResumed) || !errors.Is(err, vmm.ErrUnreachable) {
		t.Errorf("no connection: %v", err)
	}
}
