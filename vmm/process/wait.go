package process

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// childInfo is what waitid(2) tells of a child, siginfo_t of SIGCHLD on 64-bit Linux.
type childInfo struct {
	_      [2]int32 // signal and errno
	code   int32
	_      int32
	pid    int32
	_      uint32 // uid
	status int32
	_      [100]byte
}

// Codes of an end, of the kernel's asm-generic/siginfo.h.
const (
	cldExited = 1
	cldKilled = 2
	cldDumped = 3
)

// await reaps the child that pidfd holds, whatever process has its pid by now. It answers the child's status, 128 plus
// the signal if one ended it. ECHILD says that it is no child, or was reaped before. With WNOHANG one that runs is
// Unavailable.
func await(pidfd, options int) (int, error) {
	for {
		var info childInfo
		err := unix.Waitid(unix.P_PIDFD, pidfd, (*unix.Siginfo)(unsafe.Pointer(&info)), unix.WEXITED|options, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil && !errors.Is(err, unix.EAGAIN): // EAGAIN is of a descriptor that does not block
			return -1, err
		case info.pid == 0:
			return -1, fmt.Errorf("the process runs: %w", errdefs.ErrUnavailable)
		case info.code == cldExited:
			return int(info.status), nil
		case info.code == cldKilled || info.code == cldDumped:
			return 128 + int(info.status), nil
		} // else a stop of one that is traced
	}
}
