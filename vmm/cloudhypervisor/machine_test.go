package cloudhypervisor

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/vmm"
	"godwit.dev/godwit/vmm/cloudhypervisor/chtest"
)

// startCalls are those of a Start: vmm.ping, vm.create, vm.add-net.
const startCalls = 3

var ways = []string{chtest.Refuse, chtest.Broken, chtest.Empty, chtest.Hang, chtest.Close, chtest.Garbage, chtest.Exit,
	chtest.Unknown}

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

// leftovers compares what there was before with what there is now.
func leftovers(t *testing.T, cfg vmm.Config, fds, goroutines int) {
	t.Helper()
	for _, name := range []string{"api.sock", "agent.sock", "events", "vmm"} {
		if _, err := os.Lstat(filepath.Join(cfg.Dir, name)); err == nil {
			t.Errorf("left behind: %s", name)
		}
	}
	eventually(t, "descriptors closed", func() bool { return fdCount(t) <= fds })
	eventually(t, "goroutines ended", func() bool { return runtime.NumGoroutine() <= goroutines })
}

// TestStartFailsAtEachCall: whatever call of a start goes wrong, in whatever way, no
// process, socket, pipe, link, descriptor or goroutine stays.
func TestStartFailsAtEachCall(t *testing.T) {
	for _, how := range ways {
		for at := range startCalls {
			t.Run(how, func(t *testing.T) {
				f, cfg := fakeVMM(t, how, at), testConfig(t)
				fds, goroutines := fdCount(t), runtime.NumGoroutine()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if how == chtest.Hang {
					// The fake has begun once its pid is written; from then on any time will do.
					go func() {
						for !f.running(t) && ctx.Err() == nil {
							time.Sleep(time.Millisecond)
						}
						time.Sleep(50 * time.Millisecond)
						cancel()
					}()
				}
				if _, err := f.Start(ctx, cfg); err == nil {
					t.Fatalf("call %d: Start succeeds", at)
				} else {
					t.Logf("call %d: %v", at, err)
				}
				if f.running(t) {
					t.Errorf("call %d: process is left", at)
				}
				leftovers(t, cfg, fds, goroutines+1)
			})
		}
	}
}

// TestLife: a VM is started, run, stopped, saved twice, resumed, and killed.
func TestLife(t *testing.T) {
	f, cfg := fakeVMM(t, chtest.Exit, 1000), testConfig(t)
	fds, goroutines := fdCount(t), runtime.NumGoroutine()
	m := startFake(t, f, cfg)
	if p := m.Process(); p.Agent != cfg.Agent || !p.VSock || !slices.Equal(p.NICs, []string{"net0"}) {
		t.Errorf("Process: %+v", p)
	}
	ctx := t.Context()
	if err := errors.Join(m.Pause(ctx), m.Resume(ctx), m.Resume(ctx)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(filepath.Join(cfg.Dir, "vmm", kernelLink)); err == nil {
		t.Error("a reset of the guest would find a kernel to boot again")
	}
	if _, err := save(t, m); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("save while running: got %v, want FailedPrecondition", err)
	}
	if err := errors.Join(m.Pause(ctx), m.Pause(ctx)); err != nil {
		t.Fatal(err)
	}
	first, err := save(t, m)
	if err != nil {
		t.Fatal(err)
	}
	if second, err := save(t, m); err != nil || !bytes.Equal(first, second) {
		t.Errorf("second save of a pause: %v", err)
	}
	if err := errors.Join(m.Resume(ctx), m.Kill(ctx), m.Kill(ctx)); err != nil {
		t.Fatal(err)
	}
	if exit := m.Exit(); exit.Clean || exit.Status != 137 {
		t.Errorf("exit: %+v", exit)
	}
	leftovers(t, cfg, fds, goroutines)
}

func save(t *testing.T, m *Machine) ([]byte, error) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	err = m.SaveState(t.Context(), f)
	data, readErr := os.ReadFile(f.Name())
	return data, errors.Join(err, readErr)
}

// saved is the state of a VM like that of testConfig.
func saved(t *testing.T) []byte {
	t.Helper()
	m := startFake(t, fakeVMM(t, "works", 0), testConfig(t))
	if err := errors.Join(m.Resume(t.Context()), m.Pause(t.Context())); err != nil {
		t.Fatal(err)
	}
	state, err := save(t, m)
	if err != nil {
		t.Fatal(err)
	}
	return state
}

func load(t *testing.T, m *Machine, state []byte) error {
	t.Helper()
	path := filepath.Join(t.TempDir(), "state")
	if err := os.WriteFile(path, state, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return m.LoadState(t.Context(), f)
}

// TestRestore: an incoming VM takes its NIC's tap with its state, and is paused. What
// lies about RAM, or is cut, is refused before the VMM hears of it.
func TestRestore(t *testing.T) {
	state := saved(t)
	cfg := testConfig(t)
	cfg.Incoming, cfg.Kernel, cfg.Initrd = true, "", ""
	m := startFake(t, fakeVMM(t, "works", 0), cfg)
	if err := m.Resume(t.Context()); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("resume without state: got %v, want FailedPrecondition", err)
	}
	bad := map[string][]byte{
		"empty": nil, "zeroes": make([]byte, 64), "half": state[:len(state)/2],
		"RAM elsewhere": bytes.Replace(state, []byte(`file_offset\":0`), []byte(`file_offset\":9`), 1),
		"other zone":    bytes.Replace(state, []byte(`zone_id\":\"ram`), []byte(`zone_id\":\"rom`), 1),
		"RAM of its own": bytes.Replace(state, []byte(`{\"data\":[]}`),
			[]byte(`{\"data\":[{}]}`), 1),
		"size": bytes.Replace(state, []byte(`\"size\":2097152`), []byte(`\"size\":4194304`), 1),
	}
	for name, data := range bad {
		if name == "RAM of its own" {
			data = append([]byte(nil), data...)
			data[len(stateMagic)] += 2 // it is two bytes longer
		}
		if bytes.Equal(data, state) {
			t.Errorf("%s: the state is as it was", name)
		}
		if err := load(t, m, data); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: got %v, want InvalidArgument", name, err)
		}
	}
	if err := load(t, m, state); err != nil {
		t.Fatal(err)
	}
	if got := m.Process().NICs; !slices.Equal(got, []string{"net0"}) {
		t.Errorf("NICs: %v", got)
	}
	if err := load(t, m, state); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("second load: got %v, want FailedPrecondition", err)
	}
	if err := errors.Join(m.Resume(t.Context()), m.Pause(t.Context())); err != nil {
		t.Error(err)
	}
}

// TestNICs: the guest lets go, or does not; events may be lost.
func TestNICs(t *testing.T) {
	for _, env := range []string{"FAKE_LOST=", "FAKE_LOST=1"} {
		cfg := testConfig(t)
		nic := cfg.NICs[0]
		m := startFake(t, fakeVMM(t, "works", 0, env), cfg)
		ctx := t.Context()
		if err := m.RemoveNIC(ctx, "net0"); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("remove from a VM that does not run: got %v, want FailedPrecondition", err)
		}
		if err := errors.Join(m.Resume(ctx), m.RemoveNIC(ctx, "net0")); err != nil {
			t.Fatal(err)
		}
		if err := m.RemoveNIC(ctx, "net0"); !errdefs.IsNotFound(err) {
			t.Errorf("remove of what is gone: got %v, want NotFound", err)
		}
		if err := m.AddNIC(ctx, nic); err != nil {
			t.Fatal(err)
		}
		if err := m.AddNIC(ctx, nic); !errdefs.IsAlreadyExists(err) {
			t.Errorf("add of what is there: got %v, want AlreadyExists", err)
		}
	}
}

// TestNeverASecondTry: while a call is not answered everything but Kill fails.
func TestNeverASecondTry(t *testing.T) {
	// Of a Resume: vm.info, vm.boot.
	f := fakeVMM(t, chtest.Hang, startCalls+1)
	m := startFake(t, f, testConfig(t))
	if err := m.Resume(f.waiting(t)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("resume: got %v, want DeadlineExceeded", err)
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := m.Pause(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("pause afterwards: got %v, want DeadlineExceeded", err)
	}
	if err := m.Kill(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestNoAnswer: after what is no answer the VMM is asked what the VM does.
func TestNoAnswer(t *testing.T) {
	for _, how := range []string{chtest.Close, chtest.Garbage} {
		m := startFake(t, fakeVMM(t, how, startCalls+1), testConfig(t))
		if err := m.Resume(t.Context()); !errdefs.IsUnavailable(err) {
			t.Errorf("%s: resume: got %v, want Unavailable", how, err)
		}
		if err := errors.Join(m.Resume(t.Context()), m.Pause(t.Context())); err != nil {
			t.Errorf("%s: afterwards: %v", how, err)
		}
	}
}

// TestExit: a power-off by the guest and a signal to the VMM look the same, and the exit says so.
func TestExit(t *testing.T) {
	for _, e := range []struct {
		how           ending
		status        int
		clean, unsure bool
	}{
		{poweredOff, 0, true, true}, {unknown, 0, true, true}, {poweredOff, -1, true, true},
		{unknown, -1, false, false}, {unknown, 143, false, false}, {reset, 0, false, false}, {panicked, 0, false, false},
	} {
		if got := exitOf(e.how, e.status, "(Cloud Hypervisor: \"nothing\")"); got.Clean != e.clean || got.Unsure != e.unsure {
			t.Errorf("exit of %+v: %+v", e, got)
		}
	}
}

// TestEnds: what the guest did ends the VM, whatever the VMM makes of it.
func TestEnds(t *testing.T) {
	report := func(source, name string) string {
		return "{\n  \"timestamp\": {\n    \"secs\": 0,\n    \"nanos\": 1\n  },\n  \"source\": \"" + source +
			"\",\n  \"event\": \"" + name + "\",\n  \"properties\": null\n}\n\n"
	}
	for name, tt := range map[string]struct {
		text   string
		kind   vmm.EventKind
		reason string
	}{
		"reset":         {report("vm", "rebooting"), vmm.Reset, "reset by the guest"},
		"panic":         {report("guest", "panic"), vmm.Panicked, "guest panicked"},
		"after a cut":   {report("vm", "booted")[:30] + report("guest", "panic"), vmm.Panicked, "guest panicked"},
		"after garbage": {"so it goes\n\n" + report("vm", "rebooting"), vmm.Reset, "reset by the guest"},
	} {
		t.Run(name, func(t *testing.T) {
			m := startFake(t, fakeVMM(t, "works", 0, "FAKE_EVENT="+tt.text), testConfig(t))
			_ = m.Resume(t.Context()) // it may end before it has answered
			select {
			case <-m.Done():
			case <-time.After(10 * time.Second):
				t.Fatal("VM goes on")
			}
			if exit := m.Exit(); exit.Clean || exit.Reason != tt.reason {
				t.Errorf("exit: %+v", exit)
			}
			var kinds []vmm.EventKind
			for e := range m.Events() {
				kinds = append(kinds, e.Kind)
			}
			if !slices.Contains(kinds, tt.kind) {
				t.Errorf("events: %v, want %s", kinds, tt.kind)
			}
		})
	}
}

// TestAdopt: another Machine goes on with the VM, and hears what happened meanwhile.
func TestAdopt(t *testing.T) {
	cfg := testConfig(t)
	f := fakeVMM(t, "works", 0)
	m := startFake(t, f, cfg)
	if err := m.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	p := m.Process()
	if err := m.Detach(); err != nil {
		t.Fatal(err)
	}
	other := p
	other.StartTime++
	if _, err := f.Adopt(t.Context(), other); !errdefs.IsNotFound(err) {
		t.Errorf("adopt of another process: got %v, want NotFound", err)
	}
	adopted, err := f.Adopt(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if got := adopted.Process().NICs; !slices.Equal(got, []string{"net0"}) {
		t.Errorf("NICs: %v", got)
	}
	if err := errors.Join(adopted.Pause(t.Context()), adopted.Resume(t.Context())); err != nil {
		t.Error(err)
	}
	if err := adopted.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Adopt(t.Context(), p); !errdefs.IsNotFound(err) {
		t.Errorf("adopt of what is gone: got %v, want NotFound", err)
	}
	close(m.done) // for the cleanup: it is the adopter's now
}

// TestDirectoryInUse: a second VM in the directory of the first is refused, and the first one goes on. What a dead one
// has left but its socket is no obstacle.
func TestDirectoryInUse(t *testing.T) {
	f, cfg := fakeVMM(t, "works", 0), testConfig(t)
	if err := os.Mkdir(filepath.Join(cfg.Dir, "vmm"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"agent.sock", "events", "vmm/" + kernelLink} {
		if err := os.WriteFile(filepath.Join(cfg.Dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m := startFake(t, f, cfg)
	if _, err := f.Start(t.Context(), cfg); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("second start: got %v, want FailedPrecondition", err)
	}
	if err := m.Resume(t.Context()); err != nil {
		t.Errorf("the first one: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(cfg.Dir, "events")); err != nil {
		t.Error(err)
	}
}

// TestTooOld: what answers the ping with an older version gets no VM.
func TestTooOld(t *testing.T) {
	f, cfg := fakeVMM(t, "works", 0, "FAKE_VERSION=52.9.1"), testConfig(t)
	if _, err := f.Start(t.Context(), cfg); !errdefs.IsFailedPrecondition(err) ||
		!strings.Contains(err.Error(), "52.9.1") {
		t.Errorf("got %v, want FailedPrecondition with the version", err)
	}
	if f.running(t) {
		t.Error("process is left")
	}
}
