package harness

import (
	"fmt"
	"os"
	"testing"
)

// Machine is a host of its own on this one: its pids, mounts, network and cgroups are private, and nothing
// runs in it but a first process. All that is started in it ends with the test.
type Machine struct{ init *nodeInit }

// NewMachine makes one. No two of a test binary have one name.
func NewMachine(t testing.TB, name string) *Machine {
	t.Helper()
	h, err := startNodeInit(fmt.Sprintf("godwit-%d-%s", os.Getpid(), name))
	if err != nil {
		t.Fatalf("make machine %s: %v", name, err)
	}
	t.Cleanup(func() {
		if err := h.close(); err != nil {
			t.Errorf("end machine %s: %v", name, err)
		}
	})
	return &Machine{h}
}

// PID of its first process, through which nsenter(1) and /proc reach it.
func (m *Machine) PID() int { return m.init.pid() }

// Enter calls f on a thread inside the machine; a listener that is opened there is on its network.
func (m *Machine) Enter(f func() error) error { return m.init.enter(f) }
