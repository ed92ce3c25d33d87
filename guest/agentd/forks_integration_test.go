//go:build integration

package agentd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"godwit.dev/godwit/internal/osthread"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// until waits for a condition.
func until(t *testing.T, what string, met func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !met(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it never comes: %s", what)
		}
	}
}

// hold makes an exec of /held/busybox wait in execve until the answer is called: the file has a lease.
func hold(t *testing.T, s *Service) (release func()) {
	t.Helper()
	path := filepath.Join(s.containers["c1"].root.path, "held/busybox")
	data, err := os.ReadFile("/bin/busybox")
	if err == nil {
		err = errors.Join(os.Mkdir(filepath.Dir(path), 0o755), os.WriteFile(path, data, 0o755))
	}
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Fatalf("take lease: %v", err)
	}
	return func() {
		if err := unix.Close(fd); err != nil {
			t.Error(err)
		}
	}
}

// held begins an exec of it, and answers the result.
func held(t *testing.T, s *Service, args ...string) <-chan error {
	t.Helper()
	r := request(t, "held", "c1", program(func(p *specs.Process) { p.Args[0] = "/held/busybox" }, args...))
	result := make(chan error, 1)
	go func() {
		_, err := s.Start(t.Context(), r)
		result <- err
	}()
	return result
}

// strays are the children of this process that nothing is known of.
func strays(t *testing.T, s *Service) (pids []int) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	s.children.mu.Lock()
	defer s.children.mu.Unlock()
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err == nil && s.children.runs[pid] == nil && parentOf(pid) == os.Getpid() {
			pids = append(pids, pid)
		}
	}
	return pids
}

// open opens a file of a process as root with some capabilities.
func open(path string, caps uint32) error {
	return osthread.Do(func() error {
		hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		data := [2]unix.CapUserData{{Effective: caps, Permitted: caps}}
		if err := unix.Capset(&hdr, &data[0]); err != nil {
			return err
		}
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			unix.Close(fd)
		}
		return err
	})
}

// A process that has no program yet shares the memory of the fork server, and its container sees it. Root without
// CAP_SYS_PTRACE reaches neither memory nor program. Other execs do not wait for it.
func TestForkedProcessIsClosed(t *testing.T) {
	if !inGuest(t) {
		return
	}
	s := newContainerGuest(t)
	release := hold(t, s)
	result := held(t, s, "sleep", "100000")
	until(t, "a process without a program", func() bool { return len(strays(t, s)) == 1 })
	pid := strays(t, s)[0]
	const own = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID |
		1<<unix.CAP_KILL | 1<<unix.CAP_NET_RAW // usual
	for _, file := range []string{"exe", "mem", "root", "cwd", "maps"} {
		path := fmt.Sprintf("/proc/%d/%s", pid, file)
		if err := open(path, own); !errors.Is(err, os.ErrPermission) {
			t.Errorf("open %s with the capabilities of the container: %v", file, err)
		}
		if err := open(path, own|1<<unix.CAP_SYS_PTRACE); err != nil {
			t.Errorf("open %s with CAP_SYS_PTRACE: %v", file, err)
		}
	}
	start(t, s, "other", "c1", program(nil, "true"))
	start(t, s, "third", "c1", program(nil, "true"))
	// A signal finds no handler of the server in it.
	if err := unix.Kill(pid, unix.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	if err := <-result; err != nil {
		t.Error(err)
	}
	release()
	p, err := s.find("held")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := ran(t, p), fmt.Sprintf("[end of 0]\n[end of 1]\n[status %d]", 128+unix.SIGUSR1); got != want {
		t.Error(got)
	}
}

// The server ends while a process of it is on its way. The exec fails, and the process has ended. The next exec has
// another server.
func TestForkServerEnds(t *testing.T) {
	if !inGuest(t) {
		return
	}
	s := newContainerGuest(t)
	release := hold(t, s)
	result := held(t, s, "sleep", "100000")
	until(t, "a process without a program", func() bool { return len(strays(t, s)) == 1 })
	first := s.forks.server.Load()
	if err := unix.Kill(first.one.pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := <-result; !errdefs.IsUnavailable(err) {
		t.Error(err)
	}
	until(t, "the end of the process", func() bool { return len(strays(t, s)) == 0 })
	release()
	start(t, s, "next", "c1", program(nil, "true"))
	if srv := s.forks.server.Load(); srv == nil || srv == first {
		t.Errorf("server %v after %v", srv, first)
	}
	if err := unix.Kill(s.forks.server.Load().one.pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-s.forks.server.Load().ended
	start(t, s, "last", "c1", program(nil, "true")) // nothing was on its way: a stage does it
}

// From the first process on that may trace others there is no fork server, and no process of it.
func TestNoForkServerBesideATracer(t *testing.T) {
	if !inGuest(t) {
		return
	}
	for name, change := range map[string]func(*specs.Process){
		"all":      func(p *specs.Process) { p.Capabilities = nil },
		"bounding": func(p *specs.Process) { p.Capabilities.Bounding = []string{"CAP_SYS_PTRACE"} },
	} {
		if !mayTrace(program(change)) {
			t.Errorf("%s: it may not trace", name)
		}
	}
	s := newContainerGuest(t)
	start(t, s, "first", "c1", program(nil, "true"))
	server := s.forks.server.Load()
	release := hold(t, s)
	result := held(t, s, "sleep", "100000")
	until(t, "a process without a program", func() bool { return len(strays(t, s)) == 1 })
	// The one that is on its way ends with its server: it will not be waited for without limit.
	start(t, s, "tracer", "c1", program(func(p *specs.Process) {
		p.Capabilities = every(append([]string{"CAP_SYS_PTRACE"}, usual...))
	}, "true"))
	select {
	case <-server.ended:
	default:
		t.Error("the server runs beside a tracer")
	}
	if err := <-result; !errdefs.IsUnavailable(err) {
		t.Error(err)
	}
	release()
	start(t, s, "next", "c1", program(nil, "true"))
	if srv := s.forks.server.Load(); srv != nil {
		t.Error("there is a server again")
	}
}

// A process that has ended before it was adopted has its own status.
func TestAdoptAfterTheEnd(t *testing.T) {
	if !inGuest(t) {
		return
	}
	s := newContainerGuest(t)
	pidfd := -1
	s.children.expect(1)
	attr := &os.ProcAttr{Sys: &unix.SysProcAttr{PidFD: &pidfd}}
	p, err := os.StartProcess("/bin/busybox", []string{"sh", "-c", "exit 9"}, attr)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pidfd)
	until(t, "the end", func() bool { return unix.PidfdSendSignal(pidfd, 0, nil, 0) == unix.ESRCH })
	got := uint32(0)
	s.children.adopt(p.Pid, pidfd, func(status uint32, _ time.Time) { got = status })
	s.children.expect(-1)
	s.children.mu.Lock()
	defer s.children.mu.Unlock()
	if got != 9 || s.children.runs[p.Pid] != nil || len(s.children.unknown) != 0 {
		t.Errorf("status %d, %v", got, s.children.unknown)
	}
}
