package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/internal/errno"
	"godwit.dev/godwit/internal/osthread"
)

// Launch describes how a VMM is started.
type Launch struct {
	Args   []string // the first one is the program's path
	Env    []string
	Out    *os.File // standard output; nil: Log
	Log    *os.File // standard error
	FDs    []int    // numbered from FirstFD on
	NetNS  string   // path; empty: the caller's, unless Offline
	Cgroup []string
	User   User
	// Confined gives it mounts, pids and System V IPC of its own. It sees the host's files
	// until Seal, and of /dev what a VMM needs: Device, the path of one node, is its user's.
	Confined bool
	Device   string
	// Offline gives it a network namespace of its own, in which there is nothing: no link that is
	// up, no address, no abstract unix socket of the host's. It takes root.
	Offline bool
	// Userfault has the process hold a userfaultfd, by which its memory can be tracked. Where
	// it cannot be had the process starts without; Process.Untracked says why.
	Userfault bool
	// Waits has it be one that makes the kernel wait too, for pages of RAM that come while the
	// process runs.
	Waits bool
}

// Start runs the program on a thread that enters the network namespace and is thrown away. The process has its own
// session and / as its directory, dumps no core, and has no death signal. It has no capability, even as root, and no
// way to one: it runs on when the shim ends.
func (l Launch) Start() (p *Process, err error) {
	err = osthread.Do(func() (err error) {
		p, err = l.startHere()
		if errors.Is(err, errSpoiled) {
			l.Userfault = false
			spoiled := err
			if p, err = l.startHere(); err == nil {
				p.Untracked = spoiled
			}
		}
		return err
	})
	return p, err
}

func (l Launch) startHere() (*Process, error) {
	// All of the host's, which this thread may not have later.
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	device, lacking := l.device()
	if device != nil {
		defer device.Close()
	}
	program, err := filepath.Abs(l.Args[0])
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", l.Args[0], err)
	}
	if err := l.prepare(); err != nil {
		return nil, err
	}
	out := l.Out
	if out == nil {
		out = l.Log
	}
	stdout, err := descriptor(out)
	if err != nil {
		return nil, fmt.Errorf("pass standard output: %w", err)
	}
	stderr, err := descriptor(l.Log)
	if err != nil {
		return nil, fmt.Errorf("pass standard error: %w", err)
	}
	attr := &syscall.ProcAttr{Dir: "/", Env: l.Env, Files: []uintptr{null.Fd(), stdout, stderr}}
	for _, fd := range l.FDs {
		attr.Files = append(attr.Files, uintptr(fd))
	}
	if device != nil {
		attr.Files = append(attr.Files, device.Fd())
	}
	pidfd := -1
	// Traced, it stops at the exec: a moment before its first allocation to put it into
	// its cgroups, of version 1 or 2.
	attr.Sys = &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd, Ptrace: l.traced(), Credential: l.User.credential()}
	if l.Confined {
		attr.Sys.Cloneflags = syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC
	}
	if l.Offline {
		attr.Sys.Cloneflags |= syscall.CLONE_NEWNET
	}
	pid, err := syscall.ForkExec(program, l.Args, attr)
	if err != nil {
		return nil, fmt.Errorf("run %s: %w: %w", l.Args[0], errdefs.ErrFailedPrecondition, err)
	}
	number := 0
	if device != nil {
		number = len(attr.Files) - 1
	}
	fd, untracked, err := l.atExec(pid, pidfd, number, lacking)
	if err != nil {
		return nil, errors.Join(err, reap(pidfd), closePidfd(pidfd))
	}
	p, err := hold(pid, pidfd)
	if err != nil {
		return nil, errors.Join(err, reap(pidfd), closePidfd(pidfd))
	}
	p.Userfault, p.Untracked = fd, untracked
	return p, nil
}

// prepare makes of this thread what the process is to inherit, and forbids core dumps: the
// memory of a VMM is a guest's. That limit is the whole program's, which passes secrets to it.
func (l Launch) prepare() error {
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("forbid core dumps: %w", err)
	}
	if l.NetNS != "" {
		if err := enter(l.NetNS); err != nil {
			return fmt.Errorf("enter network namespace %s: %w", l.NetNS, err)
		}
	}
	if l.Confined {
		if err := l.ownMounts(); err != nil {
			return fmt.Errorf("confine %s: %w", l.Args[0], err)
		}
	}
	return dropRights()
}

// secret has a confined process that is stopped at its exec say that nothing of it is to be
// dumped: a pattern of core dumps that names a program disregards the limit. Its files in
// /proc are root's then, who tracks its RAM; it still opens its own descriptors. Where no
// system call can be executed in its name the limit has to do.
func (l Launch) secret(pid int, held *signals) error {
	if !l.Confined {
		return nil
	}
	at, err := syscallInstruction(pid)
	if err != nil {
		return nil
	}
	if _, err := inject(pid, at, held, unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 0); err != nil {
		return fmt.Errorf("forbid dumps of its memory: %w", err)
	}
	return nil
}

// device opens what makes userfaultfds that the kernel waits for, if one is wanted.
func (l Launch) device() (*os.File, error) {
	if !l.Userfault || !l.Waits {
		return nil, nil
	}
	return os.OpenFile(userfaultDevice, os.O_RDWR, 0)
}

func (l Launch) traced() bool { return len(l.Cgroup) > 0 || l.Userfault }

func enter(netns string) error {
	ns, err := os.Open(netns)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", errdefs.ErrNotFound, err)
	}
	if err != nil { // whether it is there is not known
		return err
	}
	defer ns.Close()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("%w: %w", refused(err), err)
	}
	return nil
}

// refused is the class of what this host does not let a launch do: the host lacks something now, or
// it is not as it has to be.
func refused(err error) error {
	if class := errno.Resolve(err); class != errdefs.ErrUnknown && class != errdefs.ErrPermissionDenied {
		return class
	}
	return errdefs.ErrFailedPrecondition
}

// atExec does what a process that is stopped at its exec needs, and lets it go: cgroups
// first, so that what it gets is charged to them. A userfaultfd that cannot be had is no
// error, unless the process is spoiled.
// Lacking is why the device that it was to be made by is not there.
func (l Launch) atExec(pid, pidfd, device int, lacking error) (fd int, untracked, err error) {
	if !l.traced() {
		return 0, nil, nil
	}
	var held signals
	if err := held.untilTrap(pid); err != nil {
		return 0, nil, fmt.Errorf("wait for exec: %w", err)
	}
	for _, dir := range l.Cgroup {
		procs := filepath.Join(dir, "cgroup.procs")
		if err := os.WriteFile(procs, []byte(strconv.Itoa(pid)), 0o600); err != nil {
			return 0, nil, fmt.Errorf("join cgroup: %w: %w", refused(err), err)
		}
	}
	if err := l.secret(pid, &held); err != nil {
		return 0, nil, err
	}
	if untracked = lacking; l.Userfault && lacking == nil {
		fd, untracked = userfault(pid, device, &held)
		if errors.Is(untracked, errSpoiled) {
			return 0, nil, untracked
		}
	}
	if err := held.deliver(pid, pidfd); err != nil {
		return 0, nil, err
	}
	if err := unix.PtraceDetach(pid); errors.Is(err, unix.ESRCH) {
		return 0, nil, fmt.Errorf("detach: %w: %w: %w", errEnded, errdefs.ErrUnavailable, err)
	} else if err != nil {
		return 0, nil, fmt.Errorf("detach: %w: %w", errdefs.ErrInternal, err)
	}
	return fd, untracked, nil
}

// descriptor is the number of an open file, which stays as it is.
func descriptor(file *os.File) (uintptr, error) {
	return Control(file, func(fd int) (uintptr, error) { return uintptr(fd), nil })
}
