package worker

import (
	"fmt"
	"os"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// socketPair is for a descriptor that a worker gets when it has begun.
func socketPair() (own, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	return os.NewFile(uintptr(fds[0]), "socket"), os.NewFile(uintptr(fds[1]), "socket"), nil
}

// sendFile gives the one at the other end of socket a duplicate of f.
func sendFile(socket, f *os.File) error {
	if err := unix.Sendmsg(int(socket.Fd()), []byte{0}, unix.UnixRights(int(f.Fd())), nil, 0); err != nil {
		return fmt.Errorf("pass %s: %w", f.Name(), os.NewSyscallError("sendmsg", err))
	}
	return nil
}

// receiveFile takes what has been sent.
func receiveFile(socket *os.File) (*os.File, error) {
	data, rights := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	_, n, flags, _, err := unix.Recvmsg(int(socket.Fd()), data, rights, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
	if err != nil {
		return nil, fmt.Errorf("take a descriptor: %w", os.NewSyscallError("recvmsg", err))
	}
	if flags&unix.MSG_CTRUNC != 0 { // the kernel drops what this process has no number for
		return nil, fmt.Errorf("take a descriptor: %w: %w", unix.EMFILE, errdefs.ErrResourceExhausted)
	}
	messages, err := unix.ParseSocketControlMessage(rights[:n])
	if err != nil || len(messages) != 1 {
		return nil, fmt.Errorf("no descriptor came: %w", errdefs.ErrInternal)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil, fmt.Errorf("no descriptor came: %w", errdefs.ErrInternal)
	}
	return os.NewFile(uintptr(fds[0]), "received"), nil
}
