package stdio

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// lingerBound is how long an output stays whose client has not opened it. A variable for the tests.
var lingerBound = time.Minute

const lingerInterval = 10 * time.Millisecond

// closeOnceOpened closes an output once a client has opened it, or at the end of lingerBound. It
// returns at once. containerd's clients open their end of a fifo in a goroutine, which
// a busy host may run when the process has ended: were the last writer gone by then, the client
// would wait for another one for ever, and what was written would be lost. A client that has come
// and gone costs the bound, and no caller waits for that.
func closeOnceOpened(to *os.File) {
	w := openWriter(to)
	_ = to.Close() // it was a reader too
	if w < 0 {
		return
	}
	if hasReader(w) {
		_ = unix.Close(w)
		return
	}
	end := time.Now().Add(lingerBound)
	go func() {
		defer unix.Close(w)
		for time.Now().Before(end) && !hasReader(w) {
			time.Sleep(lingerInterval)
		}
	}()
}

// openWriter opens a fifo, which is open for both, once more to write to it; -1: it is no such file.
func openWriter(to *os.File) int {
	w := -1
	conn, err := to.SyscallConn()
	if err != nil {
		return w
	}
	_ = conn.Control(func(fd uintptr) {
		if flags, err := unix.FcntlInt(fd, unix.F_GETFL, 0); err != nil || flags&unix.O_ACCMODE != unix.O_RDWR {
			return
		}
		if w, err = unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC,
			0); err != nil {
			w = -1
		}
	})
	return w
}

// hasReader reports whether the other end of a writer is open: pipe(7) has POLLERR without.
func hasReader(w int) bool {
	fds := []unix.PollFd{{Fd: int32(w)}}
	_, err := unix.Poll(fds, 0)
	return err != nil && err != unix.EINTR || err == nil && fds[0].Revents&unix.POLLERR == 0
}
