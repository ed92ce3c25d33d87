package cloudhypervisor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/vmm"
)

func cutNIC(id string) (string, bool) { return strings.CutPrefix(id, nicID("")) }

func (m *Machine) noteNIC(id string, there bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.info.NICs = slices.DeleteFunc(m.info.NICs, func(s string) bool { return s == id })
	if there {
		m.info.NICs = append(m.info.NICs, id)
	}
}

// AddNIC plugs nic in. The guest sees it once it runs.
func (m *Machine) AddNIC(ctx context.Context, nic vmm.NIC) error {
	if err := nic.Check(slots); err != nil {
		return fmt.Errorf("add: %w", err)
	}
	if slices.Contains(m.Process().NICs, nic.ID) {
		return fmt.Errorf("add NIC %s: %w", nic.ID, errdefs.ErrAlreadyExists)
	}
	err := m.change(ctx, func(_ context.Context, send sender) error { return m.plugIn(nic, send) })
	if err != nil {
		return fmt.Errorf("add NIC %s: %w", nic.ID, err)
	}
	return nil
}

// plugIn notes the NIC as there unless the VMM refuses it: one that is not noted would be in the device state of a VM
// that is restored without it, and fails.
func (m *Machine) plugIn(nic vmm.NIC, send sender) error {
	t, err := holdTap(nic)
	if err != nil {
		return err
	}
	defer func() {
		if err := t.close(); err != nil {
			m.log.Warn("close tap", "error", err)
		}
	}()
	if err := m.mtu(t.fd, nic.MTU); err != nil {
		return err
	}
	return send(func(ctx context.Context) error {
		m.noteNIC(nic.ID, true)
		err := m.api.addNet(ctx, netOf(nic), t.fd)
		if isRefusal(err) {
			m.noteNIC(nic.ID, false)
		}
		return err
	})
}

// Ejected implements vmm.NICs.
func (m *Machine) Ejected(ctx context.Context, id string) (bool, error) {
	if !slices.Contains(m.Process().NICs, id) {
		return true, nil
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	info, err := m.api.info(ctx)
	if err != nil {
		return false, fmt.Errorf("look for NIC %s: %w", id, err)
	}
	if plugged(info, nicID(id)) {
		return false, nil
	}
	m.noteNIC(id, false)
	return true, nil
}

// RemoveNIC asks the guest to let go of the NIC and waits until it has. The VM must run.
func (m *Machine) RemoveNIC(ctx context.Context, id string) error {
	if !slices.Contains(m.Process().NICs, id) {
		return fmt.Errorf("remove NIC %s: %w", id, errdefs.ErrNotFound)
	}
	if err := m.eject(ctx, nicID(id)); err != nil {
		return fmt.Errorf("remove NIC %s: %w", id, err)
	}
	m.noteNIC(id, false)
	return nil
}
