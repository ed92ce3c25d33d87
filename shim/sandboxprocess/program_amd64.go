package sandboxprocess

import "golang.org/x/sys/unix"

// wait is what becomes of a sandbox process that has done all its work: x86-64 code that calls pause(2)
// for ever.
var wait = []byte{
	0xb8, unix.SYS_PAUSE, 0, 0, 0, // again: mov eax, SYS_PAUSE
	0x0f, 0x05, //                           syscall
	0xeb, 0xf7, //                           jmp again
}
