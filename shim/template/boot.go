package template

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/vmm"
)

// quietDefault is how long a guest that has answered is left alone, if nothing else is said.
const quietDefault = 500 * time.Millisecond

// blankDisk is the size of a disk that is never read.
const blankDisk = 1 << 20

// run boots a VM of the shape up to where its agent waits, pauses it, and lets take have
// its state. The VM is gone when it returns.
func (m *Maker) run(ctx context.Context, shape Shape, ram *os.File,
	take func(vm vmm.Machine, kernel string) error) (err error) {
	var files []*os.File
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	cfg, err := m.config(shape, ram, &files)
	if err != nil {
		return err
	}
	vm, err := m.Driver.Start(ctx, *cfg)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
		defer cancel()
		err = errors.Join(err, vm.Kill(ctx))
	}()
	if err := vm.Resume(ctx); err != nil {
		return err
	}
	kernel, err := m.Prepare(ctx, vm, cfg.Console.Name())
	if err != nil {
		return err
	}
	select {
	case <-time.After(cmp.Or(m.Quiet, quietDefault)):
	case <-vm.Done():
		return fmt.Errorf("the VMM ended: %s", vm.Exit().Reason)
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := vm.Pause(ctx); err != nil {
		return err
	}
	return take(vm, kernel)
}

// config of a VM that has all the devices of the shape, with nothing in them.
func (m *Maker) config(shape Shape, ram *os.File, files *[]*os.File) (*vmm.Config, error) {
	keep := func(f *os.File, err error) (*os.File, error) {
		if err == nil {
			*files = append(*files, f)
		}
		return f, err
	}
	console, err := keep(os.OpenFile(filepath.Join(m.Dir, "console"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600))
	if err != nil {
		return nil, err
	}
	cfg := &vmm.Config{
		Name: "template/" + shape.Key(), Dir: m.Dir, Agent: filepath.Join(m.Dir, "agent.sock"), Console: console,
		Machine: shape.Machine, CPU: shape.CPU, Memory: shape.Memory, VCPUs: shape.VCPUs, RAM: ram,
		Kernel: m.Kernel, Initrd: m.Initrd, Cmdline: shape.Cmdline, HotDisks: shape.HotDisks,
	}
	for i, d := range shape.Disks {
		id := fmt.Sprintf("disk%d", i)
		f, err := keep(createEmpty(id))
		if err != nil {
			return nil, fmt.Errorf("make blank disk: %w", err)
		}
		cfg.Disks = append(cfg.Disks, vmm.Disk{ID: id, Serial: id, Slot: d.Slot, ReadOnly: d.ReadOnly, File: f})
	}
	for i, slot := range shape.NICs {
		id := fmt.Sprintf("net%d", i)
		tap, err := keep(m.Tap(id))
		if err != nil {
			return nil, fmt.Errorf("make tap: %w", err)
		}
		cfg.NICs = append(cfg.NICs, vmm.NIC{ID: id, Slot: slot, MAC: mac(slot).String(), MTU: 1500, Tap: tap})
	}
	return cfg, nil
}

func createEmpty(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	if err := f.Truncate(blankDisk); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
