package cloudhypervisor

import (
	"fmt"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/internal/osthread"
)

// tunGetDevNetNS asks a tap's descriptor for the network namespace that it lies in.
const tunGetDevNetNS = 0x54e3

// setMTU makes the tap's MTU that of the guest's NIC. The VMM tells the guest what its tap
// has, and may not change it itself: it has no rights to the network.
func setMTU(fd, mtu int) error {
	if err := osthread.Do(func() error { return setMTUHere(fd, mtu) }); err != nil {
		return fmt.Errorf("set MTU of tap: %w: %w", errdefs.ErrInvalidArgument, err)
	}
	return nil
}

func setMTUHere(fd, mtu int) error {
	req, err := unix.NewIfreq("")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.TUNGETIFF, req); err != nil {
		return err
	}
	ns, err := unix.IoctlRetInt(fd, tunGetDevNetNS)
	if err != nil {
		return err
	}
	defer unix.Close(ns)
	if err := unix.Setns(ns, unix.CLONE_NEWNET); err != nil {
		return err
	}
	s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	if err := unix.IoctlIfreq(s, unix.SIOCGIFMTU, req); err != nil || req.Uint32() == uint32(mtu) {
		return err
	}
	req.SetUint32(uint32(mtu))
	return unix.IoctlIfreq(s, unix.SIOCSIFMTU, req)
}
