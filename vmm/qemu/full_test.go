package qemu

import (
	"testing"
	"time"
)

// A VM that QEMU stopped because its disk is full on the host goes on by itself when there is
// space. It does not while it is to be paused.
func TestFullDisk(t *testing.T) {
	defer func(d time.Duration) { fullRetry = d }(fullRetry)
	fullRetry = 10 * time.Millisecond
	status := func(m *Machine) string {
		s, err := m.status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	t.Run("space comes", func(t *testing.T) {
		m := startFake(t, fakeQEMU(t, "works", 0, "FAKE_FULL=3"), testConfig(t))
		if err := m.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the VM runs", func() bool { return status(m) == "running" })
		eventually(t, "nobody waits", func() bool {
			m.mu.Lock()
			defer m.mu.Unlock()
			return !m.waiting
		})
	})
	t.Run("a question is not answered", func(t *testing.T) {
		defer func(d time.Duration) { stallBound = d }(stallBound)
		stallBound = 50 * time.Millisecond
		m := startFake(t, fakeQEMU(t, "works", 0, "FAKE_FULL=3", "FAKE_MUTE=2"), testConfig(t))
		if err := m.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the VM runs, and it is not waited any more", func() bool {
			m.mu.Lock()
			defer m.mu.Unlock()
			return !m.waiting
		})
		if s := status(m); s != "running" {
			t.Errorf("the VM is %s", s)
		}
	})
	t.Run("the monitor's connection ends", func(t *testing.T) {
		m := startFake(t, fakeQEMU(t, "works", 0, "FAKE_FULL=1000000"), testConfig(t))
		if err := m.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := m.qmp.Close(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "nobody waits", func() bool {
			m.mu.Lock()
			defer m.mu.Unlock()
			return !m.waiting
		})
	})
	t.Run("paused meanwhile", func(t *testing.T) {
		m := startFake(t, fakeQEMU(t, "works", 0, "FAKE_FULL=1000000"), testConfig(t))
		if err := m.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		m.mu.Lock()
		first := m.stalls
		m.mu.Unlock()
		eventually(t, "the VM is let on again and again", func() bool {
			m.mu.Lock()
			defer m.mu.Unlock()
			return m.stalls > first+3
		})
		if err := m.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		eventually(t, "nobody waits", func() bool {
			m.mu.Lock()
			defer m.mu.Unlock()
			return !m.waiting
		})
		if s := status(m); s == "running" {
			t.Errorf("a paused VM is %s", s)
		}
	})
}
