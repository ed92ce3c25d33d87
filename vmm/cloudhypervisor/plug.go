package cloudhypervisor

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/vmm/cloudhypervisor/api/models"
	"godwit.dev/godwit/vmm/process"
)

// ejectInterval is how often the VMM is asked whether a device is still there, because
// events get lost.
const ejectInterval = 200 * time.Millisecond

// eject asks the guest to release a device, and waits until it has.
func (m *Machine) eject(ctx context.Context, device string) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	w := m.waiters.Expect(func(e event) bool { return e.is("vm", "device-removed") && e.Properties["id"] == device })
	defer w.Close()
	err := m.change(ctx, func(ctx context.Context, send sender) error {
		state, err := m.state(ctx)
		if err != nil {
			return err
		}
		if state != stateRunning {
			return fmt.Errorf("VM is %s, only a running guest can acknowledge: %w", state, errdefs.ErrFailedPrecondition)
		}
		err = send(func(ctx context.Context) error { return m.api.removeDevice(ctx, device) })
		if isRefusal(err) {
			// It may be on its way out, asked for by an earlier call, or gone since.
			m.log.Debug("device is not asked for again", "device", device, "error", err)
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	return m.ejected(ctx, w, device)
}

// plugged reports whether the tree of devices shows one, or its place on the bus.
func plugged(info *models.Info, device string) bool {
	_, there := info.DeviceTree[device]
	_, placed := info.DeviceTree["_virtio-pci-"+device]
	return there || placed
}

// ejected waits until the guest has let go: the event says it, and the tree of devices
// shows it.
func (m *Machine) ejected(ctx context.Context, w *process.Waiter[event], device string) error {
	tick := time.NewTicker(ejectInterval)
	defer tick.Stop()
	for {
		info, err := m.api.info(ctx)
		if err != nil {
			return err
		}
		if !plugged(info, device) {
			return nil
		}
		select {
		case <-w.Got:
		case <-tick.C:
		case <-m.reader:
			return fmt.Errorf("the VMM ended: %w", errdefs.ErrUnavailable)
		case <-ctx.Done():
			return fmt.Errorf("guest does not acknowledge: %w", ctx.Err())
		}
	}
}
