package stage

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// noUser is the user of the process that holds a pod's namespaces, as with Kubernetes' pause.
const noUser = 65535

// pause holds the namespaces that the containers of a pod share. It is the first process of a pid
// namespace and reaps what becomes an orphan there. It sees no file, and is not root. It returns
// only on failure.
func (c *Container) pause(pipe *Pipe) error {
	term, child, rest := make(chan os.Signal, 1), make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(rest) // which nothing reads: all others do nothing
	signal.Notify(term, unix.SIGTERM, unix.SIGINT)
	signal.Notify(child, unix.SIGCHLD)
	if c.Hostname != "" {
		if err := unix.Sethostname([]byte(c.Hostname)); err != nil {
			return fmt.Errorf("set hostname %q: %w", c.Hostname, err)
		}
	}
	if err := sysctl(c.Sysctl); err != nil {
		return err
	}
	_ = os.WriteFile("/proc/self/comm", []byte("pause"), 0) // what ps shows: it is for people
	if err := c.leaveFiles(); err != nil {
		return err
	}
	if err := dropRoot(); err != nil {
		return err
	}
	if err := pipe.send(message{Event: Ready}); err != nil {
		return err
	}
	if err := pipe.Close(); err != nil {
		return fmt.Errorf("close stage socket: %w", err)
	}
	for {
		reapOrphans()
		select {
		case <-term:
			os.Exit(0)
		case <-child:
		}
	}
}

// leaveFiles makes an empty, read-only file system the root. The mount namespace is that of all
// threads, from the clone on: nothing is executed here that would end the others.
func (c *Container) leaveFiles() error {
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("tmpfs", c.Root, "tmpfs", unix.MS_RDONLY, "size=0k,nr_inodes=1"); err != nil {
		return fmt.Errorf("mount empty root: %w", err)
	}
	return pivot(c.Root)
}

// dropRoot changes the user of all threads, which then have no capabilities.
func dropRoot() error {
	if err := syscall.Setgroups(nil); err != nil {
		return fmt.Errorf("set groups: %w", err)
	}
	if err := syscall.Setgid(noUser); err != nil {
		return fmt.Errorf("set gid: %w", err)
	}
	if err := syscall.Setuid(noUser); err != nil {
		return fmt.Errorf("set uid: %w", err)
	}
	return nil
}

func reapOrphans() {
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		if err != unix.EINTR && (err != nil || pid <= 0) {
			return
		}
	}
}
