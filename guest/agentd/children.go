package agentd

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"time"

	"godwit.dev/godwit/guest/stage"

	"golang.org/x/sys/unix"
)

// children starts and reaps processes. Process 1 inherits every orphan of the guest,
// so there is one wait for all.
type children struct {
	mu   sync.Mutex
	runs map[int]*spawned // by pid, until they are reaped

	expected int      // processes that may be adopted soon
	unknown  []reaped // meanwhile, in order
}

// spawned is a process that was started. Once it is reaped its pid may be another's, also of one
// that was started here.
type spawned struct {
	pid   int
	ended func(status uint32, at time.Time)
}

func newChildren() *children {
	c := &children{runs: make(map[int]*spawned)}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGCHLD)
	go func() {
		for range signals {
			c.reap()
		}
	}()
	return c
}

// reap collects whatever has ended.
func (c *children) reap() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, unix.WNOHANG, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if !ws.Exited() && !ws.Signaled() {
			continue
		}
		if one := c.runs[pid]; one != nil {
			delete(c.runs, pid)
			one.ended(exitStatus(ws), time.Now())
		} else {
			c.note(reaped{pid, exitStatus(ws), time.Now()})
		}
	}
}

func exitStatus(ws unix.WaitStatus) uint32 {
	if ws.Signaled() {
		return 128 + uint32(ws.Signal())
	}
	return uint32(ws.ExitStatus())
}

// self is this program, whatever the mount namespace.
const self = "/proc/self/exe"

// names of the stages, as ps shows them. Tools look for that of pause.
var names = map[string]string{
	stage.ArgInit: "godwit-init", stage.ArgExec: "godwit-init", stage.ArgPause: "/pause",
	stage.ForkServer: "godwit-init",
}

// spawn starts a stage of this program with socket as descriptor 3. ended is called
// once when it has ended, with c locked. join, if not nil, is a process whose pid
// namespace the child is born in.
func (c *children) spawn(kind string, socket *os.File, clone uintptr, join *spawned,
	ended func(uint32, time.Time)) (*spawned, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open null: %w", err)
	}
	defer null.Close()
	attr := &syscall.ProcAttr{
		Dir:   "/",
		Files: []uintptr{null.Fd(), null.Fd(), 2, socket.Fd()},
		Sys:   &syscall.SysProcAttr{Cloneflags: clone},
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	one := &spawned{ended: ended}
	start := func() (err error) {
		one.pid, err = syscall.ForkExec(self, []string{names[kind], kind}, attr)
		return err
	}
	switch {
	case join == nil:
		err = start()
	case c.runs[join.pid] != join:
		err = unix.ESRCH
	default:
		err = inPidNamespace(join.pid, start)
	}
	if err != nil {
		return nil, fmt.Errorf("start process: %w", err)
	}
	c.runs[one.pid] = one
	return one, nil
}

// inPidNamespace runs start on a thread whose children are born in the namespace of
// pid. The thread ends with it.
func inPidNamespace(pid int, start func() error) error {
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/pid", pid))
	if err != nil {
		return fmt.Errorf("open pid namespace: %w", err)
	}
	defer ns.Close()
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread cannot be used again
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWPID); err != nil {
			result <- fmt.Errorf("join pid namespace: %w", err)
			return
		}
		result <- start()
	}()
	return <-result
}

// unreaped calls do with the pid of a process that spawn started, which is not reaped meanwhile.
// ESRCH says that it has been reaped: its pid may be another's.
func (c *children) unreaped(one *spawned, do func(pid int) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if one == nil || c.runs[one.pid] != one {
		return unix.ESRCH
	}
	return do(one.pid)
}

// pidfd opens a process that spawn started unless it has been reaped.
func (c *children) pidfd(one *spawned) (fd int, err error) {
	err = c.unreaped(one, func(pid int) (err error) {
		fd, err = unix.PidfdOpen(pid, 0)
		return err
	})
	return fd, err
}

// signal sends sig to a process that spawn started unless it has been reaped.
func (c *children) signal(one *spawned, sig unix.Signal) error {
	return c.unreaped(one, func(pid int) error { return unix.Kill(pid, sig) })
}
