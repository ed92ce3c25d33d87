package stage

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// A Go program has several threads, and none of such a program may change its user namespace. So a stage executes
// itself again, and the first instructions of the program do it: _godwit_entry, in user_amd64.s.
//
// Whatever the guest's root alone may do is done before.

// The descriptors of a stage of kind ArgUser. The first instructions know usersFD.
const (
	usersFD    = 100 // the user namespace
	stateFD    = 101 // JSON of entering
	userSocket = 102
)

// entered is 1 once the first instructions have entered the user namespace.
var entered int64

// entering is what a stage tells itself.
type entering struct {
	Process     *Process
	Init        bool
	Alone       bool   // its uts namespace is the container's own
	Propagation string // of its root file system
}

// openSelf opens this program, before its file is out of sight.
func openSelf() (int, error) {
	fd, err := unix.Open("/proc/self/exe", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open own program: %w", err)
	}
	return fd, nil
}

// enterUser executes the program again. It returns only on failure.
func (p *Process) enterUser(pipe *Pipe, self, users int, box *Container) error {
	state := entering{Process: p}
	if box != nil {
		state.Init, state.Alone, state.Propagation = true, box.alone, box.Propagation
	}
	data, err := json.Marshal(state)
	if err != nil {
		return fmt.Errorf("encode process: %w", err)
	}
	mem, err := unix.MemfdCreate("stage", unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("make state of stage: %w", err)
	}
	if _, err := unix.Pwrite(mem, data, 0); err != nil {
		return fmt.Errorf("write state of stage: %w", err)
	}
	err = nil
	raw, rawErr := pipe.conn.SyscallConn()
	if rawErr == nil {
		rawErr = raw.Control(func(socket uintptr) {
			for to, from := range map[int]int{usersFD: users, stateFD: mem, userSocket: int(socket)} {
				if err == nil {
					err = unix.Dup3(from, to, 0)
				}
			}
		})
	}
	if err != nil || rawErr != nil {
		return fmt.Errorf("pass descriptors: %w", orFirst(err, rawErr))
	}
	return execSelf(self)
}

func orFirst(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// execSelf executes the program that is open, without an environment.
func execSelf(self int) error {
	empty := []byte{0}
	argv, err := syscall.SlicePtrFromStrings([]string{"godwit-init", ArgUser})
	if err != nil {
		return err
	}
	envv := []*byte{nil}
	_, _, errno := unix.RawSyscall6(unix.SYS_EXECVEAT, uintptr(self), uintptr(unsafe.Pointer(&empty[0])),
		uintptr(unsafe.Pointer(&argv[0])), uintptr(unsafe.Pointer(&envv[0])), unix.AT_EMPTY_PATH, 0)
	runtime.KeepAlive(argv)
	return fmt.Errorf("execute own program: %w", errno)
}

// asUser goes on in the user namespace. It becomes root there, and then the container's process.
func asUser(pipe *Pipe) error {
	if entered != 1 {
		return fmt.Errorf("enter user namespace: this build or machine cannot do so: %w", errdefs.ErrNotImplemented)
	}
	unix.CloseOnExec(userSocket)
	unix.Close(usersFD)
	data, err := io.ReadAll(io.NewSectionReader(os.NewFile(stateFD, "state"), 0, forkMax*4))
	if err != nil {
		return fmt.Errorf("read state of stage: %w", err)
	}
	unix.Close(stateFD)
	var state entering
	if err := json.Unmarshal(data, &state); err != nil {
		return fmt.Errorf("read state of stage: %w", err)
	}
	if err := state.own(); err != nil {
		return err
	}
	return state.Process.become(pipe, !state.Init)
}

// own makes the mount namespace one of the user namespace, and this thread its root.
func (e *entering) own() error {
	if e.Init {
		flags := unix.CLONE_NEWNS
		if e.Alone {
			flags |= unix.CLONE_NEWUTS
		}
		if err := unix.Unshare(flags); err != nil {
			return fmt.Errorf("unshare mounts in user namespace: %w", err)
		}
		if err := propagate("/", e.Propagation); err != nil {
			return err
		}
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, 0, 0, 0); errno != 0 {
		return fmt.Errorf("become root of the user namespace: %w", errno)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 0, 0, 0); errno != 0 {
		return fmt.Errorf("become root of the user namespace: %w", errno)
	}
	return nil
}
