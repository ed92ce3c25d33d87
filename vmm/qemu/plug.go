package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/vmm/qemu/qmp"
)

// A device that is plugged in and removed while the VM runs has an id of QEMU's, which begins
// with a prefix for its kind.

// eject asks the guest to release a device, and waits until it has.
func (m *Machine) eject(ctx context.Context, device string) error {
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
			json.Unmarshal(e.Data, &data) == nil && data.Device == device
	})
	defer w.Close()
	present, err := m.present(ctx, device)
	if err != nil || !present {
		return err // an eject that was asked for earlier has happened since
	}
	err = m.execute(ctx, "device_del", map[string]any{"id": device}, nil)
	if refused := (*qmp.Error)(nil); err != nil && !errors.As(err, &refused) {
		return err
	} else if err != nil {
		// It may be on its way out, asked for by an earlier call.
		if present, err2 := m.present(ctx, device); err2 != nil || !present {
			return err2
		}
		m.log.Debug("device is being ejected already", "device", device, "error", err)
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

func (m *Machine) present(ctx context.Context, device string) (bool, error) {
	devices, err := m.listDevices(ctx)
	return slices.Contains(devices, device), err
}

// listDevices asks QEMU, which knows better than what was written down.
func (m *Machine) listDevices(ctx context.Context) ([]string, error) {
	var devices []struct {
		Name string `json:"name"`
	}
	if err := m.execute(ctx, "qom-list", map[string]any{"path": "/machine/peripheral"}, &devices); err != nil {
		return nil, err
	}
	var ids []string
	for _, d := range devices {
		ids = append(ids, d.Name)
	}
	return ids, nil
}

// idsOf are the caller's ids of the devices whose QEMU ids begin with prefix.
func idsOf(devices []string, prefix string) (ids []string) {
	for _, device := range devices {
		if id, ok := strings.CutPrefix(device, prefix); ok {
			ids = append(ids, id)
		}
	}
	return ids
}
