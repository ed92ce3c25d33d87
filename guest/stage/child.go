package stage

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/api/guesttool"
	"godwit.dev/godwit/guest/tool"
)

// Main runs a child of the given kind. It does not return unless something failed, and
// the agent has been told. The caller has locked the main goroutine to the main
// thread, whose credentials and namespaces exec keeps.
func Main(kind string) int {
	runtime.LockOSThread()
	if usualTimers() != nil {
		return 1
	}
	// Others in the container must not reach the agent's binary through our /proc entry.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return 1
	}
	socket := SocketFD
	if kind == ArgUser {
		socket = userSocket
	}
	unix.CloseOnExec(socket)
	if kind == ForkServer {
		_ = serveForks(SocketFD) // the agent sees the end of the socket
		return 1
	}
	pipe, err := NewPipe(os.NewFile(uintptr(socket), "stage"))
	if err != nil {
		return 1
	}
	if err := run(kind, pipe); err != nil {
		_ = pipe.send(message{Error: toError(err)})
	}
	return 1
}

func run(kind string, pipe *Pipe) error {
	if kind == ArgUser {
		return asUser(pipe)
	}
	var box *Container
	self, err := openSelf()
	if err != nil {
		return err
	}
	proc, err := openProc()
	if err != nil {
		return err
	}
	if kind != ArgExec {
		m, err := pipe.receive()
		if err != nil || m.Container == nil {
			return fmt.Errorf("read container: %w", orUnexpected(err))
		}
		box = m.Container
		if kind == ArgPause {
			return box.pause(pipe)
		}
		fds := pipe.TakeFDs()
		if box.User != nil {
			if fds, box.users, err = takeLast(fds); err != nil {
				return err
			}
		}
		box.alone = len(fds) == 0
		if err := enter(fds); err != nil {
			return err
		}
		if err := box.make(); err != nil {
			return err
		}
		if err := pipe.send(message{Event: Ready}); err != nil {
			return err
		}
	}
	m, err := pipe.receive()
	if err != nil || m.Process == nil {
		return fmt.Errorf("read process: %w", orUnexpected(err))
	}
	return m.Process.exec(pipe, box, self, proc)
}

// takeLast takes what comes last of the descriptors: the user namespace, or the container's init.
func takeLast(fds []int) ([]int, int, error) {
	if len(fds) == 0 {
		return nil, -1, fmt.Errorf("read stage message: a descriptor is missing: %w", errdefs.ErrInternal)
	}
	return fds[:len(fds)-1], fds[len(fds)-1], nil
}

func orUnexpected(err error) error {
	if err != nil {
		return err
	}
	return errdefs.ErrInternal
}

// exec turns this process into the container's. box is nil for ArgExec.
func (p *Process) exec(pipe *Pipe, box *Container, self, proc int) (err error) {
	if err := CheckProcess(p.Spec); err != nil {
		return err
	}
	fds, users := pipe.TakeFDs(), -1
	if p.User != nil {
		if fds, users, err = takeLast(fds); err != nil {
			return err
		}
	}
	if box == nil {
		var init int
		if fds, init, err = takeLast(fds); err != nil {
			return err
		}
		if err := join(init); err != nil {
			return err
		}
	}
	setHome(proc, p.Spec)
	unix.Close(proc) // a working directory that is called /proc/self/fd/N must not lead there
	if err := p.stdio(pipe, fds, box != nil); err != nil {
		return err
	}
	if box != nil {
		if err := ensureCwd(p.Spec.Cwd, box.User); err != nil {
			return err
		}
		if err := box.seal(); err != nil {
			return err
		}
	}
	if p.User != nil {
		return p.enterUser(pipe, self, users, box)
	}
	return p.become(pipe, box == nil)
}

// become turns this process, which is root in its container, into the container's process.
func (p *Process) become(pipe *Pipe, joined bool) error {
	if joined && p.Spec.Args[0] == guesttool.Command {
		return p.tool(pipe)
	}
	id, err := newIdentity(p)
	if err != nil {
		return err
	}
	if err := id.assume(); err != nil {
		return err
	}
	path, err := lookPath(p.Spec)
	if err != nil {
		return err
	}
	if err := await(pipe); err != nil {
		return err
	}
	// The agent opens nothing that exec leaves open. A program of a container must not find more either way.
	_ = unix.CloseRange(SocketFD, ^uint(0)>>32, unix.CLOSE_RANGE_CLOEXEC)
	if err := id.confine(); err != nil {
		return err
	}
	err = syscall.Exec(path, p.Spec.Args, id.env)
	return classify(fmt.Errorf("exec %s: %w", path, err))
}

// await tells the agent that the process is about to begin, and waits until it may.
func await(pipe *Pipe) error {
	if err := pipe.send(message{Event: Exec}); err != nil {
		return err
	}
	if m, err := pipe.receive(); err != nil || m.Event != Go {
		return fmt.Errorf("wait for the agent: %w", orUnexpected(err))
	}
	return Schedule(0, Normal)
}

// tool makes this process one of the agent's tools, in the place of a program of the image. It is
// root, as the agent is, and sees what the container sees.
func (p *Process) tool(pipe *Pipe) error {
	if err := await(pipe); err != nil {
		return err
	}
	if err := pipe.Close(); err != nil { // as exec would
		return err
	}
	os.Exit(tool.Run(p.Spec.Args[1:]))
	return nil
}

// classify gives errors of exec the class that a shell's 126 and 127 stand for.
func classify(err error) error {
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("%w: %w", err, errdefs.ErrNotFound)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%w: %w", err, errdefs.ErrPermissionDenied)
	case errors.Is(err, unix.ENOEXEC), errors.Is(err, unix.E2BIG):
		return fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	return err
}

// enter enters the namespaces that came with the container.
func enter(fds []int) error {
	for _, fd := range fds {
		if err := unix.Setns(fd, 0); err != nil {
			return fmt.Errorf("enter namespace of the pod: %w", err)
		}
		if err := unix.Close(fd); err != nil {
			return fmt.Errorf("enter namespace of the pod: %w", err)
		}
	}
	return nil
}

// join enters the namespaces of the container's init, of which it has a pidfd. The agent has entered that of pids
// before the fork.
func join(init int) error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare fs: %w", err)
	}
	const all = unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWNS
	err := unix.Setns(init, all)
	if err == unix.ESRCH {
		return fmt.Errorf("join container: its init has ended: %w: %w", err, errdefs.ErrFailedPrecondition)
	}
	if err != nil {
		return fmt.Errorf("join container: %w", err)
	}
	return unix.Close(init)
}
