package process

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// atExecStop launches a program that is held up at the exec stop. meet is called with its pid then, and the program is
// let go when meet returns.
func atExecStop(t *testing.T, args []string, meet func(pid int)) (*Process, error) {
	t.Helper()
	dir := t.TempDir()
	fifo := filepath.Join(dir, "cgroup.procs")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f, err := os.OpenFile(fifo, os.O_RDWR, 0) // a launch that is repeated finds a reader too
		if err != nil {
			return
		}
		t.Cleanup(func() { f.Close() })
		buf := make([]byte, 32)
		n, err := f.Read(buf)
		if pid, _ := strconv.Atoi(string(buf[:n])); err == nil && pid > 1 {
			meet(pid)
		}
	}()
	p, err := launch(t, Launch{Args: args, Cgroup: []string{dir}})
	<-done
	return p, err
}

func wantTracked(t *testing.T, p *Process) {
	t.Helper()
	if p.Untracked != nil && !errors.Is(p.Untracked, unix.EPERM) && !errors.Is(p.Untracked, unix.ENOSYS) &&
		len(syscallBytes) > 0 {
		t.Errorf("not tracked: %v", p.Untracked)
	}
}

func until(t *testing.T, pid int, want ...string) {
	t.Helper()
	got := ""
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		got = state(t, pid)
		for _, w := range want {
			if got == w {
				return
			}
		}
	}
	t.Errorf("state %s, want %s", got, want)
}

// What a process is sent before its first instruction reaches it, and it is the process
// that was sent it.
func TestSignalAtLaunch(t *testing.T) {
	script := []string{"/bin/sh", "-c", "while :; do sleep 0.01; done"}
	for name, tt := range map[string]struct {
		send   []unix.Signal
		state  []string // it goes on, and is seen to
		signal unix.Signal
	}{
		"stop":        {send: []unix.Signal{unix.SIGSTOP}, state: []string{"T"}},
		"stop and go": {send: []unix.Signal{unix.SIGSTOP, unix.SIGCONT}, state: []string{"S", "R"}},
		"child":       {send: []unix.Signal{unix.SIGCHLD, unix.SIGWINCH}, state: []string{"S", "R"}},
		"term":        {send: []unix.Signal{unix.SIGTERM}, signal: unix.SIGTERM},
		"several": {send: []unix.Signal{unix.SIGSTOP, unix.SIGCHLD, unix.SIGURG, unix.SIGUSR1, unix.SIGCONT},
			signal: unix.SIGUSR1},
	} {
		t.Run(name, func(t *testing.T) {
			sent := 0
			p, err := atExecStop(t, script, func(pid int) {
				sent = pid
				for _, s := range tt.send {
					_ = unix.Kill(pid, s)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			wantTracked(t, p)
			if p.PID != sent {
				t.Errorf("process %d was sent it, %d runs", sent, p.PID)
			}
			if tt.signal != 0 {
				ended(t, p, 128+int(tt.signal))
				return
			}
			until(t, p.PID, tt.state...)
		})
	}
}

// A SIGCONT that came after a SIGSTOP which the tracer holds is not lost to it.
func TestHeldStop(t *testing.T) {
	cmd := exec.Command("/bin/sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	runtime.LockOSThread() // of the tracer
	defer runtime.UnlockOSThread()
	pid := cmd.Process.Pid
	if err := unix.PtraceSeize(pid); err != nil {
		t.Fatal(err)
	}
	if err := unix.PtraceInterrupt(pid); err != nil {
		t.Fatal(err)
	}
	until(t, pid, "t")
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pidfd)
	held := signals{unix.SIGSTOP}
	if err := unix.Kill(pid, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	cont, contErr := pending(pid, unix.SIGCONT)
	stop, stopErr := pending(pid, unix.SIGSTOP)
	if !cont || stop || contErr != nil || stopErr != nil {
		t.Error("what was sent is not seen")
	}
	if err := held.deliver(pid, pidfd); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Wait4(pid, nil, unix.WALL, nil); err != nil {
		t.Fatal(err)
	}
	if err := unix.PtraceDetach(pid); err != nil {
		t.Fatal(err)
	}
	until(t, pid, "S", "R")
}

// A storm of signals ends, and the process runs.
func TestSignalStorm(t *testing.T) {
	for range 20 {
		stop, stormed := make(chan struct{}), make(chan struct{})
		sent := 0
		p, err := atExecStop(t, []string{"/bin/sh", "-c", "trap '' URG; exec sleep 60"}, func(pid int) {
			sent = pid
			go func() {
				defer close(stormed)
				for i := 0; ; i++ {
					select {
					case <-stop:
						_ = unix.Kill(pid, unix.SIGCONT)
						return
					default:
						_ = unix.Kill(pid, []unix.Signal{unix.SIGSTOP, unix.SIGCHLD, unix.SIGCONT, unix.SIGWINCH, unix.SIGURG}[i%5])
					}
				}
			}()
		})
		close(stop)
		<-stormed
		if err != nil {
			t.Fatal(err)
		}
		if p.PID != sent {
			t.Errorf("process %d was launched, %d runs", sent, p.PID)
		}
		if p.Untracked != nil {
			t.Logf("not tracked: %v", p.Untracked)
		}
		until(t, p.PID, "S", "R")
	}
}
