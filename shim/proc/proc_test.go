package proc

import (
	"context"
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

// headless makes this program one whose first thread has ended while another one lives.
const headless = "GODWIT_TEST_HEADLESS"

func init() {
	if os.Getenv(headless) == "" {
		return
	}
	runtime.LockOSThread() // of init: the first thread
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1))
		os.Exit(0)
	}()
	_, _, _ = unix.Syscall(unix.SYS_EXIT, 0, 0, 0)
}

// A process is alive as long as one of its threads is, though the first one is a zombie: what it
// has may not be freed. Killed, it is gone, waited for by its parent or not.
func TestAliveWithoutItsFirstThread(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), headless+"=1")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	id, err := Find(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join("/proc", strconv.Itoa(id.PID), "stat")
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		now, err := stat(path)
		if err != nil || time.Now().After(end) {
			t.Fatalf("its first thread is %c, %v", now.state, err)
		}
		if now.state == 'Z' {
			break
		}
	}
	if alive, err := id.Alive(); !alive || err != nil {
		t.Error("it is called dead while a thread of it lives")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	if err := id.Wait(ctx); err == nil {
		t.Error("its end was awaited while a thread of it lives")
	}
	if err := id.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	alive, unknown := id.Alive()
	if now, err := stat(path); err != nil || now.state != 'Z' || alive || unknown != nil {
		t.Errorf("killed it is %c, %v, alive: %t, %v", now.state, err, alive, unknown)
	}
	_ = cmd.Wait()
	alive, unknown = id.Alive()
	if err := id.Signal(unix.SIGCONT); !errors.Is(err, os.ErrProcessDone) || alive || unknown != nil {
		t.Errorf("signal what is gone: %v, alive: %t, %v", err, alive, unknown)
	}
}

// thread tells its id and stays until it may end.
func thread(tid chan<- int, stay <-chan struct{}) {
	runtime.LockOSThread()
	tid <- unix.Gettid()
	<-stay
}
