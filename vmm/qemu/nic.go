package qemu

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/vmm"
	"godwit.dev/godwit/vmm/qemu/qmp"
)

// AddNIC plugs nic in. The guest sees it once it runs. The NIC counts as there unless QEMU
// refuses it. A NIC that is not known here would be in the device state of a VM that is restored
// without it. That restore fails. What became of one without an answer, Ejected and RemoveNIC
// find out.
func (m *Machine) AddNIC(ctx context.Context, nic vmm.NIC) error {
	if err := nic.Check(slots); err != nil {
		return fmt.Errorf("add: %w", err)
	}
	if slices.Contains(m.Process().NICs, nic.ID) {
		return fmt.Errorf("add NIC %s: %w", nic.ID, errdefs.ErrAlreadyExists)
	}
	m.setState(nil)
	m.noteNIC(nic.ID)
	err := m.plugIn(ctx, nic)
	if refused := (*qmp.Error)(nil); errors.As(err, &refused) {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		err = errors.Join(err, m.forget(undo, nic.ID))
	}
	if err != nil {
		return fmt.Errorf("add NIC %s: %w", nic.ID, err)
	}
	return nil
}

func (m *Machine) noteNIC(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.info.NICs = append(m.info.NICs, id)
}

func (m *Machine) plugIn(ctx context.Context, nic vmm.NIC) error {
	if err := m.addBackend(ctx, nic); err != nil {
		return err
	}
	return m.execute(ctx, "device_add", map[string]any{
		"driver": "virtio-net-pci", "id": nicID(nic.ID), "netdev": tapID(nic.ID),
		"bus": port(nic.Slot), "addr": "0", "mac": nic.MAC, "host_mtu": nic.MTU, "romfile": "",
	}, nil)
}

func (m *Machine) addBackend(ctx context.Context, nic vmm.NIC) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	if err := m.qmp.SendFile(ctx, tapID(nic.ID), nic.Tap); err != nil {
		return err
	}
	err := m.qmp.Execute(ctx, "netdev_add", map[string]any{
		"type": "tap", "id": tapID(nic.ID), "fd": tapID(nic.ID), "vhost": false,
	}, nil)
	if err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		return errors.Join(err, m.closeFile(undo, tapID(nic.ID)))
	}
	return nil
}

func (m *Machine) removeBackend(ctx context.Context, id string) error {
	return m.execute(ctx, "netdev_del", map[string]any{"id": tapID(id)}, nil)
}

// RemoveNIC asks the guest to let go of the NIC and waits until it has. The VM must run.
func (m *Machine) RemoveNIC(ctx context.Context, id string) error {
	if !slices.Contains(m.Process().NICs, id) {
		return fmt.Errorf("remove NIC %s: %w", id, errdefs.ErrNotFound)
	}
	if err := m.eject(ctx, nicID(id)); err != nil {
		return fmt.Errorf("remove NIC %s: %w", id, err)
	}
	if err := m.forget(ctx, id); err != nil {
		return fmt.Errorf("remove NIC %s: %w", id, err)
	}
	return nil
}

// Ejected implements vmm.NICs.
func (m *Machine) Ejected(ctx context.Context, id string) (bool, error) {
	if !slices.Contains(m.Process().NICs, id) {
		return true, nil
	}
	there, err := m.present(ctx, nicID(id))
	if err == nil && !there {
		err = m.forget(ctx, id)
	}
	if err != nil {
		return false, fmt.Errorf("look for NIC %s: %w", id, err)
	}
	return !there, nil
}

// forget a NIC that the guest has let go, or never had.
func (m *Machine) forget(ctx context.Context, id string) error {
	if err := m.removeBackend(ctx, id); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.info.NICs = slices.DeleteFunc(m.info.NICs, func(s string) bool { return s == id })
	return nil
}

// release closes the taps of NICs that were there and are not: their eject was not waited for to
// its end, and no other process can open such a tap.
func (m *Machine) release(ctx context.Context, was []string) error {
	for _, id := range was {
		if slices.Contains(m.Process().NICs, id) {
			continue
		}
		var refused *qmp.Error
		if err := m.removeBackend(ctx, id); err != nil && !errors.As(err, &refused) {
			return err
		}
	}
	return nil
}
