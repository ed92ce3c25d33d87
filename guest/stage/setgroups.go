package stage

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// setgroups sets the supplementary groups of this thread alone.
func setgroups(gids []uint32) error {
	var p unsafe.Pointer
	if len(gids) > 0 {
		p = unsafe.Pointer(&gids[0])
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(gids)), uintptr(p), 0); errno != 0 {
		return errno
	}
	return nil
}
