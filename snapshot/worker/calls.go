package worker

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// forbid takes from all threads what landlock and a process without capabilities still have as
// long as their user is root: the sockets of the host's other programs, of which containerd would
// do anything for root, and signals to them and limits on them. It wants no new privileges first.
// A kernel without such filters leaves that in reach.
func forbid() error {
	if runtime.GOARCH != "amd64" {
		return nil // other architectures have other numbers of calls
	}
	code := calls(uint32(os.Getpid()))
	prog := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	thread, _, e := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&prog)))
	switch {
	case e == unix.ENOSYS, e == unix.EINVAL:
		return nil
	case e != 0:
		return fmt.Errorf("confine worker: filter calls: %w", e)
	case thread != 0:
		return fmt.Errorf("confine worker: filter calls: thread %d has a filter of its own: %w", thread,
			errors.ErrUnsupported)
	}
	return nil
}

// Where struct seccomp_data has what, and the bit of calls by another convention.
const (
	offsetNumber = 0
	offsetArch   = 4
	offsetFirst  = 16 // the low half of the first argument
	otherCalls   = 0x40000000
)

var (
	permit = unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}
	refuse = unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EACCES)}
)

func load(offset uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
}

func equal(k uint32, yes, no int) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jt: uint8(yes), Jf: uint8(no)}
}

// calls is the filter of a process: connections to registries and nodes, what concerns itself, and all calls that
// concern no other process.
func calls(pid uint32) []unix.SockFilter {
	code := []unix.SockFilter{
		load(offsetArch), equal(unix.AUDIT_ARCH_X86_64, 1, 0), refuse,
		load(offsetNumber), {Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, K: otherCalls, Jf: 1}, refuse,
	}
	for _, c := range []struct {
		number uint32
		first  []uint32 // that the argument may be
	}{
		{unix.SYS_SOCKET, []uint32{unix.AF_INET, unix.AF_INET6}},
		{unix.SYS_KILL, []uint32{pid}}, {unix.SYS_TGKILL, []uint32{pid}}, {unix.SYS_PRLIMIT64, []uint32{0, pid}},
		{unix.SYS_TKILL, nil}, {unix.SYS_RT_SIGQUEUEINFO, nil}, {unix.SYS_RT_TGSIGQUEUEINFO, nil},
		{unix.SYS_PIDFD_SEND_SIGNAL, nil},
		{unix.SYS_IO_URING_SETUP, nil}, // it makes sockets of its own
	} {
		code = append(code, equal(c.number, 0, len(c.first)+3), load(offsetFirst))
		for i, v := range c.first {
			code = append(code, equal(v, len(c.first)-i, 0))
		}
		code = append(code, refuse, permit)
	}
	return append(code, permit)
}
