package qemu

import (
	"context"
	"os"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/vmm/qemu/qmptest"
	"godwit.dev/godwit/vmm/vmmtest"
)

func (m *Machine) isHeld() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.held
}

// TestAbortInSave: a save that has begun when its caller leaves comes to its end, since QEMU lets
// no VM go on in its midst.
func TestAbortInSave(t *testing.T) {
	f := fakeQEMU(t, "works", 0, "FAKE_SAVES=1")
	m := startFake(t, f, testConfig(t))
	to, err := os.CreateTemp(t.TempDir(), "state")
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	ctx := f.waiting(t)
	saved := make(chan error, 1)
	go func() { saved <- m.SaveState(ctx, to) }()
	<-ctx.Done()
	vmmtest.Tell(f.pidFile + lets)
	if err := <-saved; err != nil {
		t.Errorf("save: %v", err)
	}
	if data, err := os.ReadFile(to.Name()); err != nil || string(data) != qmptest.State {
		t.Errorf("state: %q, %v", data, err)
	}
	if err := m.Resume(t.Context()); err != nil {
		t.Errorf("resume: %v", err)
	}
}

// TestResumeAfterASave: a VM whose shim died while its state was saved is let go on when the save
// is over.
func TestResumeAfterASave(t *testing.T) {
	f := fakeQEMU(t, "works", 0, "FAKE_SAVES=1")
	m := startFake(t, f, testConfig(t))
	w, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := m.qmp.SendFile(t.Context(), stateFile, w); err != nil {
		t.Fatal(err)
	}
	if err := m.execute(t.Context(), "migrate", map[string]any{"uri": "fd:" + stateFile}, nil); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(f.pidFile + waits); err != nil {
		t.Fatal(err)
	}
	resumed := make(chan error, 1)
	go func() { resumed <- m.Resume(t.Context()) }()
	eventually(t, "somebody looks", func() bool { return vmmtest.Told(f.pidFile + waits) })
	vmmtest.Tell(f.pidFile + lets)
	if err := <-resumed; err != nil {
		t.Errorf("resume: %v", err)
	}
	if status, err := m.status(t.Context()); err != nil || status != "running" {
		t.Errorf("VM is %s, %v", status, err)
	}
}

// TestPauseThatWasNotSent: a VM that was not paused after all is still one that is let go on when
// its disk has space again.
func TestPauseThatWasNotSent(t *testing.T) {
	m := startFake(t, fakeQEMU(t, "works", 0), testConfig(t))
	if err := m.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.Pause(over); err == nil {
		t.Error("pause succeeds")
	}
	if m.isHeld() {
		t.Error("a VM that runs on is taken for a paused one")
	}
	m.hold(true) // as a Pause does whose answer says no
	if err := m.Resume(t.Context()); err != nil || m.isHeld() {
		t.Errorf("resume of a VM that runs: %v, taken for a paused one: %v", err, m.isHeld())
	}
}

// TestPlugWithoutAnswer: a NIC whose plug was given up came later, or did not. It can be taken
// out before a sleep and plugged in again, whichever call of a plug it was.
func TestPlugWithoutAnswer(t *testing.T) {
	for at, call := range []string{"getfd", "netdev_add", "device_add"} {
		t.Run(call, func(t *testing.T) {
			cfg := testConfig(t)
			nic := cfg.NICs[0]
			cfg.NICs = nil
			f := fakeQEMU(t, qmptest.Slow, startCalls+2+at) // of Resume: query-status, cont
			m := startFake(t, f, cfg)
			if err := m.Resume(t.Context()); err != nil {
				t.Fatal(err)
			}
			ctx := f.waiting(t)
			added := make(chan error, 1)
			go func() { added <- m.AddNIC(ctx, nic) }()
			<-ctx.Done()
			if call == "device_add" { // after which nothing is undone
				if err := <-added; !errdefs.IsDeadlineExceeded(err) {
					t.Errorf("add: got %v, want DeadlineExceeded", err)
				}
				added <- nil
			}
			vmmtest.Tell(f.pidFile + lets)
			t.Logf("add: %v", <-added)
			if err := m.RemoveNIC(t.Context(), nic.ID); err != nil {
				t.Errorf("remove: %v", err)
			}
			if there, err := m.present(t.Context(), nicID(nic.ID)); err != nil || there {
				t.Errorf("a VM that is to sleep without NICs has %v, %v", there, err)
			}
			if err := m.AddNIC(t.Context(), nic); err != nil {
				t.Errorf("add again: %v", err)
			}
			if gone, err := m.Ejected(t.Context(), nic.ID); err != nil || gone {
				t.Errorf("the NIC is gone: %v, %v", gone, err)
			}
		})
	}
}

// TestRefusedPlug: a NIC that QEMU refuses is not there, and leaves nothing in the way of the next.
func TestRefusedPlug(t *testing.T) {
	for at, call := range []string{"getfd", "netdev_add", "device_add"} {
		cfg := testConfig(t)
		nic := cfg.NICs[0]
		cfg.NICs = nil
		m := startFake(t, fakeQEMU(t, qmptest.Refuse, startCalls+at), cfg)
		if err := m.AddNIC(t.Context(), nic); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%s: got %v, want FailedPrecondition", call, err)
		}
		if got := m.Process().NICs; len(got) > 0 {
			t.Errorf("%s: NICs %v", call, got)
		}
		if err := m.AddNIC(t.Context(), nic); err != nil {
			t.Errorf("%s: add again: %v", call, err)
		}
	}
}
