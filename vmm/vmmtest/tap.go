package vmmtest

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// OpenTap makes a tap, its link up, that goes with its last descriptor. It needs root.
func OpenTap() (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	req, err := unix.NewIfreq("gwt%d")
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	if err := linkUp(req); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), "tap"), nil
}

// linkUp takes the name from req: some VMMs do not bear a tap that is down.
func linkUp(req *unix.Ifreq) error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	if err := unix.IoctlIfreq(s, unix.SIOCGIFFLAGS, req); err != nil {
		return err
	}
	req.SetUint16(req.Uint16() | unix.IFF_UP)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, req)
}

// OpenNetNS makes a network namespace that goes with its last descriptor. It needs root.
func OpenNetNS() (ns *os.File, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends with this goroutine
		if err = unix.Unshare(unix.CLONE_NEWNET); err == nil {
			ns, err = os.Open("/proc/thread-self/ns/net")
		}
	}()
	<-done
	return ns, err
}

// OpenTapIn is OpenTap in a network namespace; nil: the caller's.
func OpenTapIn(ns *os.File) (tap *os.File, err error) {
	if ns == nil {
		return OpenTap()
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // as above
		if err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err == nil {
			tap, err = OpenTap()
		}
	}()
	<-done
	return tap, err
}

// pathOf is by which the namespace is entered.
func pathOf(ns *os.File) string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.Fd()) }

// isIn tells whether a process is in the network namespace.
func isIn(pid int, ns *os.File) error {
	want, err := ns.Stat()
	if err != nil {
		return err
	}
	got, err := os.Stat(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return err
	}
	if !os.SameFile(got, want) {
		return fmt.Errorf("process %d is not in the network namespace that it was given", pid)
	}
	return nil
}
