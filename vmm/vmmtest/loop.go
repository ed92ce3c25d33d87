package vmmtest

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Loop makes a block device of the file at path, which goes with the last descriptor of the
// device. It needs root, and no program: those that make one differ in their options.
func Loop(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	control, err := unix.Open("/dev/loop-control", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/loop-control: %w", err)
	}
	defer unix.Close(control)
	for {
		n, err := unix.IoctlRetInt(control, unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("find a free loop device: %w", err)
		}
		device, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", n), os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		c := unix.LoopConfig{Fd: uint32(file.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR}}
		if err = unix.IoctlLoopConfigure(int(device.Fd()), &c); err == nil {
			return device, nil
		}
		if err = errors.Join(err, device.Close()); !errors.Is(err, unix.EBUSY) { // somebody else took it
			return nil, fmt.Errorf("make /dev/loop%d of %s: %w", n, path, err)
		}
	}
}
