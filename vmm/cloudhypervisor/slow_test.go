package cloudhypervisor

import (
	"context"
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"godwit.dev/godwit/vmm"
	"godwit.dev/godwit/vmm/cloudhypervisor/chtest"
	"godwit.dev/godwit/vmm/vmmtest"
)

// slow are steps after a Resume whose last call takes its time.
var slow = map[string]func(ctx context.Context, t *testing.T, m *Machine, nic vmm.NIC) error{
	"pause": func(ctx context.Context, _ *testing.T, m *Machine, _ vmm.NIC) error { return m.Pause(ctx) },
	"save": func(ctx context.Context, t *testing.T, m *Machine, _ vmm.NIC) error {
		f, err := os.CreateTemp(t.TempDir(), "state")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		return errors.Join(m.Pause(t.Context()), m.SaveState(ctx, f))
	},
	"add NIC": func(ctx context.Context, t *testing.T, m *Machine, nic vmm.NIC) error {
		nic.ID, nic.Slot = "net1", 5
		return m.AddNIC(ctx, nic)
	},
	"add disk": func(ctx context.Context, t *testing.T, m *Machine, _ vmm.NIC) error {
		return m.AddDisk(ctx, hotDisk(t))
	},
	"power button": func(ctx context.Context, _ *testing.T, m *Machine, _ vmm.NIC) error { return m.PowerButton(ctx) },
}

// slowAt is the number of that call: a Resume is vm.info and vm.boot.
var slowAt = map[string]int{"pause": 2, "save": 3, "add NIC": 2, "add disk": 2, "power button": 2}

// leave begins a step whose caller leaves in the midst of it.
func leave(t *testing.T, f fake, m *Machine, name string, nic vmm.NIC) {
	t.Helper()
	if err := m.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := slow[name](f.waiting(t), t, m, nic); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%s: got %v, want DeadlineExceeded", name, err)
	}
}

// runs looks at the VMM, not at what is remembered of it.
func runs(t *testing.T, m *Machine) {
	t.Helper()
	if state, err := m.state(t.Context()); err != nil || state != stateRunning {
		t.Errorf("VM is %q, %v", state, err)
	}
}

// TestCallerLeaves: what was sent is followed to its end, however early its caller leaves, as the
// abort of an operation has it. The VM goes on then, whatever it was that took so long.
func TestCallerLeaves(t *testing.T) {
	for name, at := range slowAt {
		t.Run(name, func(t *testing.T) {
			f, cfg := fakeVMM(t, chtest.Slow, startCalls+at), testConfig(t)
			m := startFake(t, f, cfg)
			leave(t, f, m, name, cfg.NICs[0])
			resumed := make(chan error, 1)
			go func() { resumed <- m.Resume(t.Context()) }()
			vmmtest.Tell(f.pidFile + lets)
			if err := <-resumed; err != nil {
				t.Errorf("resume: %v", err)
			}
			runs(t, m)
			if name == "add NIC" && !slices.Contains(m.Process().NICs, "net1") {
				t.Error("nobody knows of the NIC that came late")
			}
			if name == "add disk" && !slices.Contains(m.Process().Disks, "image") {
				t.Error("the disk that came late is not known")
			}
		})
	}
}

// TestLateAnswer: after a call that was given up altogether only Kill works, until the VMM answers again.
func TestLateAnswer(t *testing.T) {
	defer func(f func(context.Context) (context.Context, context.CancelFunc)) { patience = f }(patience)
	usual := patience
	for name, at := range slowAt {
		t.Run(name, func(t *testing.T) {
			f, cfg := fakeVMM(t, chtest.Slow, startCalls+at), testConfig(t)
			m := startFake(t, f, cfg)
			if err := m.Resume(t.Context()); err != nil {
				t.Fatal(err)
			}
			patience = func(ctx context.Context) (context.Context, context.CancelFunc) {
				return f.waiting(t), func() {}
			}
			if err := slow[name](t.Context(), t, m, cfg.NICs[0]); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("%s: got %v, want DeadlineExceeded", name, err)
			}
			patience = usual
			short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if err := m.Pause(short); err == nil {
				t.Error("a VM of which nobody knows what it does is paused")
			}
			vmmtest.Tell(f.pidFile + lets)
			if err := m.Resume(t.Context()); err != nil {
				t.Errorf("resume: %v", err)
			}
			runs(t, m)
			if gone, err := m.Ejected(t.Context(), "net1"); err != nil || gone == (name == "add NIC") {
				t.Errorf("NIC that came late, or never: gone %v, %v", gone, err)
			}
			if gone, err := m.DiskEjected(t.Context(), "image"); err != nil || gone == (name == "add disk") {
				t.Errorf("disk that came late, or never: gone %v, %v", gone, err)
			}
		})
	}
}
