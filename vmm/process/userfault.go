package process

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/internal/errno"
)

// A userfaultfd acts on the memory of the process that has made it, and a VMM makes none
// for us. So the process is given one at its exec stop, where it has one thread, no
// seccomp filter, and has not executed an instruction: the system call is executed in its
// name, at an instruction that the kernel has mapped into it, and its registers are put
// back. Nothing of its memory is written. The descriptor stays open in the process, so
// that every later shim finds it.

// userfaultDevice makes userfaultfds by an ioctl, of which who has opened it decides (Linux 6.1).
const (
	userfaultDevice = "/dev/userfaultfd"
	ioctlNew        = 0xaa00
)

// errSpoiled says that the process cannot go on: its registers are not its own.
var errSpoiled = errors.New("the process is spoiled")

// userfault opens a userfaultfd in a traced process that is stopped at its exec, and
// answers its number there. With errSpoiled the process must be ended. What it was sent
// meanwhile is held for it.
//
// Without capabilities it may have one that does not stop the kernel on its behalf. That is all that is needed: write
// protection whose faults go to no handler stops no thread. Where pages are to come while the process runs, the kernel
// has to wait as well: device, the number there of the open userfaultDevice, makes such a one for any user; 0: none. It
// does not stay open.
func userfault(pid, device int, held *signals) (int, error) {
	at, err := syscallInstruction(pid)
	if err != nil {
		return 0, fmt.Errorf("find a system call: %w", err)
	}
	// A tracer that dies between here and the detach takes the process along, which would run on with wrong registers.
	if err := unix.PtraceSetOptions(pid, unix.PTRACE_O_EXITKILL); err != nil {
		return 0, fmt.Errorf("trace: %w", err)
	}
	const userModeOnly = 1
	const flags = uint64(unix.O_CLOEXEC | unix.O_NONBLOCK)
	var fd int
	if device == 0 {
		fd, err = inject(pid, at, held, unix.SYS_USERFAULTFD, flags|userModeOnly)
	} else {
		fd, err = inject(pid, at, held, unix.SYS_IOCTL, uint64(device), ioctlNew, flags)
		if _, e := inject(pid, at, held, unix.SYS_CLOSE, uint64(device)); e != nil {
			return 0, fmt.Errorf("take %s back: %w", userfaultDevice, spoiled(e))
		}
	}
	if err != nil {
		return 0, fmt.Errorf("userfaultfd: %w", err)
	}
	name, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, fd))
	if err != nil || !strings.Contains(name, "[userfaultfd]") {
		return 0, fmt.Errorf("descriptor %d is %q: %w", fd, name, errors.Join(err, errdefs.ErrInternal))
	}
	return fd, nil
}

// syscallInstruction is the address of one in the page of code that the kernel maps into
// every process.
func syscallInstruction(pid int) (uint64, error) {
	if len(syscallBytes) == 0 {
		return 0, fmt.Errorf("not on this architecture: %w", errdefs.ErrNotImplemented)
	}
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(maps) {
		if !bytes.HasSuffix(bytes.TrimSpace(line), []byte("[vdso]")) {
			continue
		}
		var start, end uint64
		if _, err := fmt.Sscanf(string(line), "%x-%x ", &start, &end); err != nil || end-start > 1<<20 {
			return 0, fmt.Errorf("line %q: %w", line, errdefs.ErrInternal)
		}
		code := make([]byte, end-start)
		mem, err := os.Open("/proc/" + strconv.Itoa(pid) + "/mem")
		if err != nil {
			return 0, err
		}
		defer mem.Close()
		if _, err := mem.ReadAt(code, int64(start)); err != nil {
			return 0, err
		}
		if i := bytes.Index(code, syscallBytes); i >= 0 {
			return start + uint64(i), nil
		}
	}
	return 0, fmt.Errorf("none in the vdso: %w", errdefs.ErrNotFound)
}

// spoiled is an error after which the process has other registers, unless it is dead.
func spoiled(err error) error {
	if errors.Is(err, errEnded) || errors.Is(err, unix.ESRCH) {
		return err
	}
	return fmt.Errorf("%w: %w", errSpoiled, err)
}

var errEnded = errors.New("the process has ended")

// endClass is of a process that ended while it was launched: one that somebody has killed can be
// started again.
func endClass(status unix.WaitStatus) error {
	if status.Signaled() && errno.FromOutside(status.Signal()) {
		return errdefs.ErrUnavailable
	}
	return errdefs.ErrInternal
}

// stopped waits until the traced process stops.
func stopped(pid int) (unix.WaitStatus, error) {
	var status unix.WaitStatus
	for {
		_, err := unix.Wait4(pid, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return status, err
		case !status.Stopped():
			return status, fmt.Errorf("status %#x: %w: %w", status, errEnded, endClass(status))
		default:
			return status, nil
		}
	}
}

// LogUntracked says why the process of a VM has no userfaultfd, if one was wanted.
func (p *Process) LogUntracked(log *slog.Logger, vm string) {
	if p.Untracked != nil {
		log.Warn("RAM is not tracked by userfaultfd", "vm", vm, "error", p.Untracked)
	}
}
