package stage

import (
	"fmt"
	"unsafe"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// instructionSize is that of struct sock_filter.
const instructionSize = 8

// needsFilterCapability reports whether the process keeps a capability that it may not have until
// its filter is in place: without no_new_privileges the kernel asks for it.
func (id *identity) needsFilterCapability() bool { return id.filter != nil && !id.spec.NoNewPrivileges }

// capabilities of the process. One whose spec names none has what its user has.
func (id *identity) capabilities() (data [2]unix.CapUserData, err error) {
	if id.spec.Capabilities == nil {
		hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		if err := unix.Capget(&hdr, &data[0]); err != nil {
			return data, fmt.Errorf("read capabilities: %w", err)
		}
		return data, nil
	}
	for _, c := range id.caps[0] {
		data[c/32].Effective |= 1 << (c % 32)
	}
	for _, c := range id.caps[1] {
		data[c/32].Permitted |= 1 << (c % 32)
	}
	for _, c := range id.caps[2] {
		data[c/32].Inheritable |= 1 << (c % 32)
	}
	return data, nil
}

// confine installs the filter, on the thread that execs alone: those of the runtime go
// with exec, and need calls that the profile may forbid. Nothing comes after it but
// giving the borrowed capability back, and exec.
func (id *identity) confine() error {
	if id.filter == nil {
		return nil
	}
	prog, err := id.filter.prog()
	if err != nil {
		return err
	}
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	_, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, uintptr(id.filter.Flags),
		uintptr(unsafe.Pointer(prog)))
	if errno != 0 {
		return fmt.Errorf("linux.seccomp: install filter: %w", errno)
	}
	if !id.needsFilterCapability() {
		return nil
	}
	_, _, errno = unix.RawSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&hdr)), uintptr(unsafe.Pointer(&id.final[0])), 0)
	if errno != 0 {
		return fmt.Errorf("linux.seccomp: the profile forbids capset, which is needed without process.noNewPrivileges: %w",
			errno)
	}
	return nil
}

// prog is the filter as the kernel takes it.
func (f *Seccomp) prog() (*unix.SockFprog, error) {
	n := len(f.Program)
	if n == 0 || n%instructionSize != 0 || n/instructionSize > unix.BPF_MAXINSNS {
		return nil, fmt.Errorf("linux.seccomp: a filter of %d bytes: %w", n, errdefs.ErrInvalidArgument)
	}
	return &unix.SockFprog{
		Len:    uint16(n / instructionSize),
		Filter: (*unix.SockFilter)(unsafe.Pointer(unsafe.SliceData(f.Program))),
	}, nil
}

// personality sets the execution domain.
func (id *identity) personality() error {
	if id.persona == 0 {
		return nil
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_PERSONALITY, uintptr(id.persona), 0, 0); errno != 0 {
		return fmt.Errorf("linux.personality: %w", errno)
	}
	return nil
}
