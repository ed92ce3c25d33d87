package agentd

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// readNow reads what a non-blocking descriptor has into two pieces of memory. The Go scheduler
// is not told. For a call that it knows of, it looks for other work, wakes a thread for it and a
// third one to watch both. Without KVM this takes longer than to copy the bytes.
func readNow(fd int, first, second []byte) (int, error) {
	pieces := [2]unix.Iovec{}
	for i, b := range [][]byte{first, second} {
		pieces[i].Base = unsafe.SliceData(b)
		pieces[i].SetLen(len(b))
	}
	n, _, errno := unix.RawSyscall(unix.SYS_READV, uintptr(fd), uintptr(unsafe.Pointer(&pieces)), uintptr(len(pieces)))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
