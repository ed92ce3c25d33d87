package stage

import (
	"fmt"
	"os"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// stdio puts the process's streams on 0, 1 and 2, in a session of its own.
func (p *Process) stdio(pipe *Pipe, fds []int, init bool) error {
	if _, err := unix.Setsid(); err != nil && err != unix.EPERM {
		return fmt.Errorf("start session: %w", err)
	}
	if p.Spec.Terminal {
		return p.terminal(pipe, init)
	}
	if len(fds) != 3 {
		return fmt.Errorf("process came with %d streams, not 3", len(fds))
	}
	for i, fd := range fds {
		if err := unix.Dup3(fd, i, 0); err != nil {
			return fmt.Errorf("set stream %d: %w", i, err)
		}
		unix.Close(fd)
	}
	own(p, []int{0, 1, 2})
	return nil
}

// own makes pipes those of the process's user. As with runc, a process that is not root can open
// /proc/self/fd/1 again.
func own(p *Process, fds []int) {
	for _, fd := range fds {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err == nil && st.Mode&unix.S_IFMT == unix.S_IFIFO {
			uid, gid := p.User.owner(p.Spec.User.UID, p.Spec.User.GID)
			_ = unix.Fchown(fd, uid, gid)
		}
	}
}

// terminal makes a pty in the container's own devpts, gives its master to the agent
// and the slave to the process.
func (p *Process) terminal(pipe *Pipe, init bool) error {
	var st unix.Stat_t
	if err := unix.Stat("/dev/ptmx", &st); err != nil {
		return fmt.Errorf("open terminal: stat /dev/ptmx: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != unix.Mkdev(5, 2) { // the container may have a disk there
		return fmt.Errorf("open terminal: /dev/ptmx is not the device of that name: %w", errdefs.ErrInvalidArgument)
	}
	master, err := os.OpenFile("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open terminal: %w", err)
	}
	defer master.Close()
	fd := int(master.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		return fmt.Errorf("name terminal: %w", err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return fmt.Errorf("unlock terminal: %w", err)
	}
	if size := p.Spec.ConsoleSize; size != nil {
		ws := &unix.Winsize{Row: uint16(size.Height), Col: uint16(size.Width)}
		if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, ws); err != nil {
			return fmt.Errorf("size terminal: %w", err)
		}
	}
	name := fmt.Sprintf("/dev/pts/%d", n)
	slave, err := unix.Open(name, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open terminal %s: %w", name, err)
	}
	defer unix.Close(slave)
	owner, _ := p.User.owner(p.Spec.User.UID, 0)
	if err := unix.Fchown(slave, owner, -1); err != nil {
		return fmt.Errorf("own terminal %s: %w", name, err)
	}
	if init {
		if err := bindConsole(name); err != nil {
			return err
		}
	}
	if err := pipe.send(message{Event: Console}, fd); err != nil {
		return err
	}
	if err := unix.IoctlSetInt(slave, unix.TIOCSCTTY, 0); err != nil {
		return fmt.Errorf("control terminal %s: %w", name, err)
	}
	for i := range 3 {
		if err := unix.Dup3(slave, i, 0); err != nil {
			return fmt.Errorf("set stream %d: %w", i, err)
		}
	}
	return nil
}

// bindConsole makes the terminal of the container's init its /dev/console.
func bindConsole(name string) error {
	// What the image has there is not opened.
	f, err := os.OpenFile("/dev/console", os.O_CREATE|os.O_EXCL|os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NOCTTY, 0o666)
	if err == nil {
		f.Close()
	}
	if err := unix.Mount(name, "/dev/console", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("make /dev/console: %w", err)
	}
	return nil
}
