package cloudhypervisor

import "context"

// plugInAll gives a copy of a template its disks and NICs. It stands still: its guest sees them when it runs.
func (m *Machine) plugInAll(send sender) error {
	for _, disk := range m.plan.vm.Disks {
		if err := send(func(ctx context.Context) error { return m.api.addDisk(ctx, disk) }); err != nil {
			return err
		}
	}
	for _, t := range m.plan.taps {
		err := send(func(ctx context.Context) error { return m.api.addNet(ctx, netOf(t.nic), t.fd) })
		if err != nil {
			return err
		}
	}
	return nil
}
