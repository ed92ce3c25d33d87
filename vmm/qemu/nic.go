package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

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
	if err := m.eject(ctx, id); err != nil {
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
	there, err := m.present(ctx, id)
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

func (m *Machine) eject(ctx context.Context, id string) error {
	status, err := m.status(ctx)
	if err != nil {
		return err
	}
	if status != "running" {
		return fmt.Errorf("VM is %s, only a running guest can acknowledge: %w", status, errdefs.ErrFailedPrecondition)
	}
	w := m.waiters.Expect(func(e qmp.Event) bool {
		var data struct {
			Device string `json:"device"`
		}
		return (e.Name == "DEVICE_DELETED" || e.Name == "DEVICE_UNPLUG_GUEST_ERROR") &&
			json.Unmarshal(e.Data, &data) == nil && data.Device == nicID(id)
	})
	defer w.Close()
	present, err := m.present(ctx, id)
	if err != nil || !present {
		return err // an eject that was asked for earlier has happened since
	}
	err = m.execute(ctx, "device_del", map[string]any{"id": nicID(id)}, nil)
	if refused := (*qmp.Error)(nil); err != nil && !errors.As(err, &refused) {
		return err
	} else if err != nil {
		// It may be on its way out, asked for by an earlier call.
		if present, err2 := m.present(ctx, id); err2 != nil || !present {
			return err2
		}
		m.log.Debug("NIC is being ejected already", "nic", id, "error", err)
	}
	select {
	case e := <-w.Got:
		if e.Name != "DEVICE_DELETED" {
			return fmt.Errorf("guest refuses: %w", errdefs.ErrFailedPrecondition)
		}
		return nil
	case <-m.qmp.Done():
		return m.qmp.Err()
	case <-ctx.Done():
		return fmt.Errorf("guest does not acknowledge: %w", ctx.Err())
	}
}

func (m *Machine) present(ctx context.Context, id string) (bool, error) {
	nics, err := m.listNICs(ctx)
	return slices.Contains(nics, id), err
}

// listNICs asks QEMU, which knows better than what was written down.
func (m *Machine) listNICs(ctx context.Context) ([]string, error) {
	var devices []struct {
		Name string `json:"name"`
	}
	if err := m.execute(ctx, "qom-list", map[string]any{"path": "/machine/peripheral"}, &devices); err != nil {
		return nil, err
	}
	var ids []string
	for _, d := range devices {
		if id, ok := strings.CutPrefix(d.Name, nicID("")); ok {
			ids = append(ids, id)
		}
	}
	return ids, nil
}
