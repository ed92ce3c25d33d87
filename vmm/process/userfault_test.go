package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

func launch(t *testing.T, l Launch) (*Process, error) {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	l.Log, l.Userfault = log, true
	p, err := l.Start()
	if err == nil {
		t.Cleanup(func() { p.Kill(); p.Wait(); p.Status(); p.Close() })
	}
	return p, err
}

// ended wants the process to end by itself, with that status.
func ended(t *testing.T, p *Process, want int) {
	t.Helper()
	if err := p.Wait(); err != nil {
		t.Fatal(err)
	}
	if got := p.Status(); got != want {
		t.Errorf("status %d, want %d", got, want)
	}
}

func state(t *testing.T, pid int) string {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))[0]
}

// Without the right to it the process runs as well, and the reason is told.
func TestUserfault(t *testing.T) {
	p, err := launch(t, Launch{Args: []string{"/bin/sleep", "60"}})
	if err != nil {
		t.Fatal(err)
	}
	if s := state(t, p.PID); s == "t" || s == "T" {
		t.Errorf("state %s after the launch", s)
	}
	name, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", p.PID, p.Userfault))
	switch {
	case p.Untracked != nil && p.Userfault != 0:
		t.Errorf("descriptor %d and error %v", p.Userfault, p.Untracked)
	case p.Untracked == nil && name != "anon_inode:[userfaultfd]":
		t.Errorf("descriptor %d is %q", p.Userfault, name)
	case p.Untracked == nil && runtime.GOARCH != "amd64":
		t.Errorf("on %s", runtime.GOARCH)
	case p.Untracked != nil && runtime.GOARCH == "amd64" && os.Getuid() == 0 && !errors.Is(p.Untracked, unix.EPERM) &&
		!errors.Is(p.Untracked, unix.ENOSYS):
		t.Error(p.Untracked)
	}
	q, err := launch(t, Launch{Args: []string{"/bin/sh", "-c", "exit 7"}})
	if err != nil {
		t.Fatal(err)
	}
	ended(t, q, 7)
}

// Whatever goes wrong, the process runs in the end, as if nothing had been tried.
func TestUserfaultFails(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("nothing is injected")
	}
	own := syscallBytes
	defer func() { syscallBytes = own }()
	for name, tt := range map[string]struct {
		code  []byte
		class error
	}{
		"no architecture":             {nil, errdefs.ErrNotImplemented},
		"no such instruction":         {[]byte("no vdso has this text"), errdefs.ErrNotFound},
		"it returns into the unknown": {[]byte{0xc3}, errSpoiled},
	} {
		t.Run(name, func(t *testing.T) {
			syscallBytes = tt.code
			p, err := launch(t, Launch{Args: []string{"/bin/sh", "-c", "exit 7"}})
			if err != nil {
				t.Fatal(err)
			}
			if p.Userfault != 0 || !errors.Is(p.Untracked, tt.class) {
				t.Errorf("descriptor %d, %v, want %v", p.Userfault, p.Untracked, tt.class)
			}
			ended(t, p, 7)
		})
	}
}

// A process that is killed while it is traced is an error, never a wait.
func TestUserfaultKilled(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "cgroup.procs") // holds up the launch at the exec stop
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	killed := make(chan int, 1)
	go func() {
		defer close(killed)
		data, err := os.ReadFile(fifo)
		pid, _ := strconv.Atoi(string(data))
		if err == nil && pid > 1 && unix.Kill(pid, unix.SIGKILL) == nil {
			killed <- pid
		}
	}()
	begun := time.Now()
	p, err := launch(t, Launch{Args: []string{"/bin/sleep", "60"}, Cgroup: []string{dir}})
	pid := <-killed
	if pid == 0 {
		t.Fatal("the launch never came by")
	}
	// It may be fast enough to let the process go before that dies.
	if err == nil {
		ended(t, p, 128+int(unix.SIGKILL))
	} else if !errdefs.IsUnavailable(err) {
		t.Errorf("%v, want an error that says to try again", err)
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
		t.Errorf("process %d is left, %v after", pid, time.Since(begun))
	}
}
