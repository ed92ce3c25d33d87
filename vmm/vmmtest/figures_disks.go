package vmmtest

import (
	"context"
	"errors"
)

// hot boots VMs without and with hot slots in turn, and plugs a disk into the latter. What the slots cost a
// boot is the ratio of the two.
func (m *measure) hot(ctx context.Context, b *bench) error {
	for range m.rounds {
		cold, err := m.timedBoot(ctx, b, "boot to first line, no hot slots", nil)
		if err != nil {
			return err
		}
		hot, err := m.timedBoot(ctx, b, "boot to first line, 16 hot slots", withHotSlots)
		if err != nil {
			return err
		}
		if err := errors.Join(m.plugDisk(ctx, b, hot), cold.Kill(ctx), hot.Kill(ctx)); err != nil {
			return err
		}
	}
	return nil
}

func (m *measure) timedBoot(ctx context.Context, b *bench, name string, change func(*vm) error) (v *vm, err error) {
	err = m.time(name, func() error {
		v, err = b.boot(ctx, change)
		return err
	})
	return v, err
}

// plugDisk plugs a disk in and ejects it.
func (m *measure) plugDisk(ctx context.Context, b *bench, v *vm) error {
	disk, err := v.hotDisk(b, "figure")
	if err != nil {
		return err
	}
	err = m.time("add disk to the guest's line with it", func() error {
		if err := m.time("add disk, answered", func() error { return v.AddDisk(ctx, disk) }); err != nil {
			return err
		}
		return v.diskSeen(ctx, "figure")
	})
	if err != nil {
		return err
	}
	return m.time("remove disk, acknowledged", func() error { return v.RemoveDisk(ctx, disk.ID) })
}
