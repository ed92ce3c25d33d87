package stage

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// forked are the namespaces that a process has of its container.
const forked = unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWPID

// forkServer starts processes in containers for the agent. It saves the start of a stage for each. It has one
// thread that works, and one process at a time. It is in the agent's namespaces: no container sees it.
type forkServer struct {
	home int // pidfd of the agent
	proc int // the agent's /proc
	buf  []byte
	oob  []byte
}

// serveForks serves the agent until it closes its end, or a request leaves the server in a container.
func serveForks(socket int) error {
	debug.SetGCPercent(forkGarbage)
	if err := Schedule(0, Normal); err != nil { // which the processes inherit
		return err
	}
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare fs: %w", err)
	}
	home, err := unix.PidfdOpen(os.Getppid(), 0)
	if err != nil {
		return fmt.Errorf("open agent: %w", err)
	}
	proc, err := openProc()
	if err != nil {
		return err
	}
	s := &forkServer{home: home, proc: proc, buf: make([]byte, forkMax),
		oob: make([]byte, unix.CmsgSpace(4*(forkUsers+1)))}
	for {
		p, fds, err := s.receive(socket)
		if err != nil {
			return err
		}
		if err := s.answer(socket, p, fds); err != nil {
			return err
		}
	}
}

// forkGarbage keeps the heap of the server, which has little that lives, at a megabyte.
const forkGarbage = 25

// receive waits for a request. The thread sleeps in the kernel, without the runtime's poller.
func (s *forkServer) receive(socket int) (*Process, []int, error) {
	n, oobn, flags, _, err := unix.Recvmsg(socket, s.buf, s.oob, unix.MSG_CMSG_CLOEXEC)
	for err == unix.EINTR {
		n, oobn, flags, _, err = unix.Recvmsg(socket, s.buf, s.oob, unix.MSG_CMSG_CLOEXEC)
	}
	if err != nil || n == 0 || flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		return nil, nil, fmt.Errorf("read request: %d bytes: %w", n, errors.Join(err, errdefs.ErrUnavailable))
	}
	fds, err := rights(s.oob[:oobn])
	if err != nil {
		return nil, nil, err
	}
	p := new(Process)
	if err := json.Unmarshal(s.buf[:n], p); err != nil {
		return nil, nil, fmt.Errorf("read request: %w", err)
	}
	return p, fds, nil
}

// answer does a request. Its own error says that the server can do no other.
func (s *forkServer) answer(socket int, p *Process, fds []int) error {
	var r ForkReply
	pid, pidfd, err := s.fork(p, fds)
	r.Pid = pid
	if err != nil {
		r.Error = err.Error()
	}
	for _, fd := range fds {
		unix.Close(fd)
	}
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode reply: %w", err)
	}
	var oob []byte
	if pidfd >= 0 {
		oob = unix.UnixRights(pidfd)
		defer unix.Close(pidfd)
	}
	if err := unix.Sendmsg(socket, data, oob, nil, 0); err != nil {
		return fmt.Errorf("send reply: %w", err)
	}
	if err := unix.Setns(s.home, forked); err != nil {
		return fmt.Errorf("leave container: %w", err)
	}
	return nil
}

// fork makes the process. It leaves the server in the container.
func (s *forkServer) fork(p *Process, fds []int) (pid, pidfd int, err error) {
	want := forkFDs
	if p.User != nil {
		want = forkUsers + 1
	}
	if len(fds) != want {
		return 0, -1, fmt.Errorf("read request: %d descriptors, not %d: %w", len(fds), want, errdefs.ErrInvalidArgument)
	}
	if err := CheckProcess(p.Spec); err != nil {
		return 0, -1, err
	}
	if err := unix.Setns(fds[forkInit], forked); err != nil {
		return 0, -1, fmt.Errorf("join container: %w", err)
	}
	return s.inContainer(p, fds)
}

// inContainer is called in the namespaces of the container.
func (s *forkServer) inContainer(p *Process, fds []int) (pid, pidfd int, err error) {
	setHome(s.proc, p.Spec)
	id, err := newIdentity(p)
	if err != nil {
		return 0, -1, err
	}
	own(p, fds[:3])
	// As root first: the user may not be allowed to enter. The guest's root is not root of another user namespace.
	outside := p.User != nil || unix.Chdir(p.Spec.Cwd) != nil
	plan, err := id.plan(fds, s.proc, outside)
	if err != nil {
		return 0, -1, err
	}
	return plan.run(fds[forkCgroup])
}
