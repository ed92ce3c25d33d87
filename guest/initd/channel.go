package initd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"godwit.dev/godwit/guest/session"

	"golang.org/x/sys/unix"
)

// portName is the virtio-serial port of the agent.
const portName = "agent"

// probeTime is how long the devices have to appear: virtio-serial ports are announced
// by messages of the VMM.
const (
	probeTime = 10 * time.Second
	probeStep = 2 * time.Millisecond
)

// openChannel serves the listener over the agent's port, or over vsock in a VM that
// has no such port. It returns only on failure.
func openChannel(l *session.Listener, ready func() error) error {
	for begin := time.Now(); time.Since(begin) < probeTime; time.Sleep(probeStep) {
		path, err := findPort()
		if err == nil {
			return servePort(l, path)
		}
		if !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if hasSerial() {
			continue
		}
		if err := ready(); err != nil { // vsock is among the modules loaded later
			return err
		}
		if _, err := os.Stat("/dev/vsock"); err == nil {
			return serveVSock(l)
		}
	}
	return fmt.Errorf("no virtio-serial port %q and no vsock", portName)
}

// hasSerial reports whether there is a virtio-serial device whose ports may still come.
func hasSerial() bool {
	found, err := os.ReadDir("/sys/bus/virtio/drivers/virtio_console")
	if err != nil {
		return !errors.Is(err, os.ErrNotExist)
	}
	return slices.ContainsFunc(found, func(e os.DirEntry) bool { return strings.HasPrefix(e.Name(), "virtio") })
}

func findPort() (string, error) {
	const class = "/sys/class/virtio-ports"
	ports, err := os.ReadDir(class)
	if err != nil {
		return "", err
	}
	for _, port := range ports {
		data, err := os.ReadFile(filepath.Join(class, port.Name(), "name"))
		if err == nil && strings.TrimSpace(string(data)) == portName {
			return "/dev/" + port.Name(), nil
		}
	}
	return "", os.ErrNotExist
}

func servePort(l *session.Listener, path string) error {
	ch, err := session.OpenPort(path)
	if err != nil {
		return err
	}
	return fmt.Errorf("serve port %s: %w", path, l.Serve(ch))
}

// serveVSock takes connections of the host; the newest one carries the session.
func serveVSock(l *session.Listener) error {
	fd, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("make vsock: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrVM{CID: unix.VMADDR_CID_ANY, Port: session.VSockPort}); err != nil {
		return fmt.Errorf("bind vsock: %w", err)
	}
	if err := unix.Listen(fd, 8); err != nil {
		return fmt.Errorf("listen on vsock: %w", err)
	}
	return acceptHost(func() (int, error) {
		conn, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		return conn, err
	}, func(conn int) {
		var ch io.ReadWriteCloser = os.NewFile(uintptr(conn), "vsock")
		go func() { _ = l.Serve(ch) }()
	})
}

// acceptPause is the time between two attempts while the guest has no descriptor or memory left.
const acceptPause = 100 * time.Millisecond

// acceptHost serves each connection that accept answers. It returns only when the listener itself
// is broken: process 1 ends after it, and the guest with it. A workload can use up the descriptors
// of the whole guest (ENFILE), so every other failure is waited out.
func acceptHost(accept func() (int, error), serve func(conn int)) error {
	for {
		conn, err := accept()
		switch err {
		case nil:
			serve(conn)
		case unix.EINTR, unix.ECONNABORTED:
		case unix.EBADF, unix.EINVAL, unix.ENOTSOCK:
			return fmt.Errorf("accept on vsock: %w", err)
		default:
			time.Sleep(acceptPause)
		}
	}
}
