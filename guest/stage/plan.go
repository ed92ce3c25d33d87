package stage

import (
	"fmt"
	"runtime"
	"strings"
	"unsafe"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// call is a system call of a child that has no program yet. spawn knows the layout.
type call struct {
	nr    uintptr
	args  [6]uintptr
	skip  uintptr // where it fails, the child goes on so many calls further; 0: the child ends
	errno uintptr // why it has failed
}

// cloneArgs is struct clone_args of linux/sched.h.
type cloneArgs struct {
	flags, pidfd uint64
	_            [8]uint64 // thread ids, signal, stack, tls: none
	cgroup       uint64
}

// plan is what a child does from its beginning to the program. All that it needs is there before: the
// child has no Go runtime.
type plan struct {
	calls []call
	pins  runtime.Pinner
	err   error
}

// at answers the address of v, which stays until the plan is dropped.
func at[T any](p *plan, v *T) uintptr {
	p.pins.Pin(v)
	return uintptr(unsafe.Pointer(v))
}

// text answers the address of a C string.
func (p *plan) text(s string) uintptr {
	b, err := unix.BytePtrFromString(s)
	if err != nil {
		p.err = err
		return 0
	}
	return at(p, b)
}

// texts answers the address of a list of C strings.
func (p *plan) texts(list []string) uintptr {
	var content []byte
	for _, s := range list {
		if strings.ContainsRune(s, 0) {
			p.err = unix.EINVAL
		}
		content = append(append(content, s...), 0)
	}
	content = append(content, 0)
	pointers, next := make([]uintptr, len(list)+1), at(p, unsafe.SliceData(content))
	for i, s := range list {
		pointers[i] = next
		next += uintptr(len(s)) + 1
	}
	return at(p, unsafe.SliceData(pointers))
}

// do adds a call that must succeed.
func (p *plan) do(nr uintptr, args ...uintptr) { p.try(0, nr, args...) }

// try adds a call. If it fails, the child goes on skip calls further.
func (p *plan) try(skip int, nr uintptr, args ...uintptr) {
	c := call{nr: nr, skip: uintptr(skip)}
	copy(c.args[:], args)
	p.calls = append(p.calls, c)
}

// childFlags of clone3: the parent waits for the program, and is not the parent that wait knows.
const childFlags = unix.CLONE_VM | unix.CLONE_VFORK | unix.CLONE_PARENT | unix.CLONE_PIDFD | unix.CLONE_INTO_CGROUP |
	unix.CLONE_CLEAR_SIGHAND

// run makes a child in a cgroup, and lets it do the calls. The last one of them executes the program.
func (p *plan) run(cgroup int) (pid, pidfd int, err error) {
	defer p.pins.Unpin()
	if p.err != nil {
		return 0, -1, p.err
	}
	fd, last := new(int32), new(*call)
	args := &cloneArgs{flags: childFlags, cgroup: uint64(cgroup), pidfd: uint64(at(p, fd))}
	p.pins.Pin(last)
	p.pins.Pin(args)
	p.pins.Pin(unsafe.SliceData(p.calls))
	var all, old unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	// The child must not run a handler of the runtime. It has none of its own, and lets signals come again.
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &old); err != nil {
		return 0, -1, err
	}
	got := spawn(args, unsafe.Sizeof(*args), unsafe.SliceData(p.calls), last)
	err = unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil)
	if errno := -got; errno != 0 && errno < 4096 {
		return 0, -1, unix.Errno(errno)
	}
	switch c := *last; {
	case err != nil:
	case c.errno != 0:
		err = unix.Errno(c.errno)
	case c.nr != unix.SYS_EXECVE:
		err = fmt.Errorf("child was killed before exec: %w", errdefs.ErrUnavailable)
	}
	if err != nil {
		unix.Close(int(*fd))
		return 0, -1, err
	}
	return int(got), int(*fd), nil
}
