package shim

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/vmm"
)

// fakeNICs are those of a guest; they stay when a shim dies.
type fakeNICs struct {
	mu   sync.Mutex
	has  []vmm.NIC
	deaf bool     // to requests for an eject
	log  []string // what happened to them, in order
}

func (n *fakeNICs) note(format string, args ...any) {
	n.log = append(n.log, fmt.Sprintf(format, args...))
}

// told answers what happened since the last time.
func (n *fakeNICs) told() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	log := n.log
	n.log = nil
	return log
}

func (n *fakeNICs) list() (ids []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, nic := range n.has {
		ids = append(ids, nic.ID)
	}
	return ids
}

// lose is an eject, asked for or not.
func (n *fakeNICs) lose(id string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	before := len(n.has)
	n.has = slices.DeleteFunc(n.has, func(nic vmm.NIC) bool { return nic.ID == id })
	return len(n.has) < before
}

func (m *fakeMachine) AddNIC(_ context.Context, nic vmm.NIC) error {
	if err := m.call("add NIC"); err != nil {
		return err
	}
	if slices.Contains(m.nics.list(), nic.ID) {
		return errdefs.ErrAlreadyExists
	}
	m.nics.mu.Lock()
	defer m.nics.mu.Unlock()
	m.nics.note("add %s %s slot %d running %v", nic.ID, nic.MAC, nic.Slot, m.running())
	m.nics.has = append(m.nics.has, nic)
	return nil
}

func (m *fakeMachine) RemoveNIC(ctx context.Context, id string) error {
	if err := m.call("remove NIC"); err != nil {
		return err
	}
	if !m.running() {
		return fmt.Errorf("only a running guest can acknowledge: %w", errdefs.ErrFailedPrecondition)
	}
	m.nics.mu.Lock()
	m.nics.note("remove %s", id)
	deaf := m.nics.deaf
	m.nics.mu.Unlock()
	if deaf {
		<-ctx.Done()
		return fmt.Errorf("guest does not acknowledge: %w", ctx.Err())
	}
	if !m.nics.lose(id) {
		return errdefs.ErrNotFound
	}
	return nil
}

func (m *fakeMachine) Ejected(_ context.Context, id string) (bool, error) {
	return !slices.Contains(m.nics.list(), id), m.call("look for NIC")
}
