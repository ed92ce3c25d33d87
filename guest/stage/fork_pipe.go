package stage

import (
	"encoding/json"
	"fmt"
	"net"
	"os"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// ForkServer is argv[1] of the fork server. Its socket keeps messages apart.
const ForkServer = "fork-server"

// The descriptors of a request: stdin, stdout, stderr, and these.
const (
	forkCgroup = 3 + iota // the directory of the cgroup
	forkInit              // pidfd of the container's init
	forkFDs
	forkUsers = forkFDs // the user namespace of a process that has one
)

// forkMax is how large a request is at most.
const forkMax = 64 << 10

// ForkReply is the answer of the fork server. A pidfd comes with a pid.
type ForkReply struct {
	Pid   int    `json:",omitempty"`
	Error string `json:",omitempty"` // why there is no process
}

// ForkPipe is the agent's end of the socket to a fork server.
type ForkPipe struct{ conn *net.UnixConn }

// NewForkPipe takes over a socket.
func NewForkPipe(f *os.File) (*ForkPipe, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("use socket of the fork server: %w", err)
	}
	return &ForkPipe{c.(*net.UnixConn)}, nil
}

// Close lets the server end.
func (p *ForkPipe) Close() error { return p.conn.Close() }

// Ask sends a request with the descriptors that SendProcess takes. If it fails, the server has not got it.
func (p *ForkPipe) Ask(proc *Process, fds []int, cgroup, init int) error {
	data, err := json.Marshal(proc)
	if err != nil {
		return fmt.Errorf("encode process: %w", err)
	}
	if len(data) > forkMax {
		return fmt.Errorf("ask fork server: %d bytes: %w", len(data), errdefs.ErrResourceExhausted)
	}
	all := append(fds[:3:3], cgroup, init)
	oob := unix.UnixRights(append(all, fds[3:]...)...)
	if _, _, err := p.conn.WriteMsgUnix(data, oob, nil); err != nil {
		return fmt.Errorf("ask fork server: %w", err)
	}
	return nil
}

// Reply waits for the answer to a request. The pidfd is the caller's. An error says that the server has ended,
// and nothing about the process.
func (p *ForkPipe) Reply() (r ForkReply, pidfd int, err error) {
	data, oob := make([]byte, forkMax), make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := p.conn.ReadMsgUnix(data, oob)
	if err == nil && n == 0 {
		err = errdefs.ErrUnavailable
	}
	if err != nil {
		return r, -1, fmt.Errorf("read answer of fork server: %w", err)
	}
	fds, err := rights(oob[:oobn])
	if err == nil {
		err = json.Unmarshal(data[:n], &r)
	}
	if err == nil && (len(fds) == 1) != (r.Pid > 0) {
		err = fmt.Errorf("%d descriptors, pid %d: %w", len(fds), r.Pid, errdefs.ErrInternal)
	}
	if err != nil {
		for _, fd := range fds {
			unix.Close(fd)
		}
		return r, -1, fmt.Errorf("read answer of fork server: %w", err)
	}
	return r, append(fds, -1)[0], nil
}

// rights are the descriptors that came with a message.
func rights(oob []byte) (fds []int, err error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("read descriptors: %w", err)
	}
	for i := range msgs {
		got, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			return fds, fmt.Errorf("read descriptors: %w", err)
		}
		fds = append(fds, got...)
	}
	return fds, nil
}
