package process

import (
	"os"
	"os/exec"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/internal/fdtest"
)

// A process that cannot be looked at for want of a descriptor is not called gone; one that is gone,
// or of another boot, is.
func TestAdoptKnowsWhatIsGone(t *testing.T) {
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	p, err := Hold(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for left := range 2 {
		restore := fdtest.Exhaust(t, left)
		_, err := Adopt(p.PID, p.StartTime, p.Boot)
		restore()
		if !errdefs.IsUnavailable(err) || errdefs.IsNotFound(err) {
			t.Errorf("with %d descriptors adopt = %v, want Unavailable", left, err)
		}
	}
	if _, err := Adopt(p.PID, p.StartTime, "another"); !errdefs.IsNotFound(err) {
		t.Errorf("adopt what ran in another boot = %v, want NotFound", err)
	}
	same, err := Adopt(p.PID, p.StartTime, "")
	if err != nil {
		t.Fatalf("adopt what an earlier build wrote down: %v", err)
	}
	if same.Boot != p.Boot {
		t.Errorf("its boot is %q, want %q", same.Boot, p.Boot)
	}
	_ = same.Close()
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if _, err := Adopt(p.PID, p.StartTime, p.Boot); !errdefs.IsNotFound(err) {
		t.Errorf("adopt what is gone = %v, want NotFound", err)
	}
}

// A child that was waited for already is ended without a signal to the process that has its pid by now: here the pid is
// that of another process, and the descriptor is the child's.
func TestReapSparesAnother(t *testing.T) {
	child, other := exec.Command("true"), exec.Command("sleep", "600")
	for _, cmd := range []*exec.Cmd{child, other} {
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = other.Process.Kill(); _ = other.Wait() })
	pidfd, err := unix.PidfdOpen(child.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(pidfd), "pidfd")
	defer file.Close()
	if err := child.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := reap(pidfd); err != nil {
		t.Errorf("reap = %v", err)
	}
	var status unix.WaitStatus
	if pid, err := unix.Wait4(other.Process.Pid, &status, unix.WNOHANG, nil); pid != 0 || err != nil {
		t.Errorf("the other process has ended: pid %d, status %#x, %v", pid, status, err)
	}
}

// A process that was reaped elsewhere does not take the status of another child, which was given its pid. What was held
// for it is not sent to that one.
func TestStatusAndSignalsSpareAnother(t *testing.T) {
	child, other := exec.Command("true"), exec.Command("sh", "-c", "exit 7")
	for _, cmd := range []*exec.Cmd{child, other} {
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
	}
	pidfd, err := unix.PidfdOpen(child.Process.Pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	p := &Process{PID: other.Process.Pid, pidfd: os.NewFile(uintptr(pidfd), "pidfd")}
	defer p.Close()
	if err := child.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Waitid(unix.P_PID, other.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	if got := p.Status(); got != -1 {
		t.Errorf("status %d of a process that somebody else has reaped, want -1", got)
	}
	if err := other.Wait(); other.ProcessState.ExitCode() != 7 {
		t.Errorf("the other child's status is lost: %v", err)
	}
	bystander := exec.Command("sleep", "600")
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = bystander.Process.Kill(); _ = bystander.Wait() })
	if err := unix.Kill(bystander.Process.Pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	until(t, bystander.Process.Pid, "T")
	held := signals{unix.SIGTERM}
	if err := held.deliver(bystander.Process.Pid, pidfd); err != nil {
		t.Errorf("deliver to what is gone = %v", err)
	}
	if hit, err := pending(bystander.Process.Pid, unix.SIGTERM); hit || err != nil {
		t.Errorf("another process got the signal: %t, %v", hit, err)
	}
}

// The status of a child is its exit status, or 128 plus the signal, once; one that runs has none.
func TestStatus(t *testing.T) {
	for script, want := range map[string]int{"exit 7": 7, "kill -9 $$": 137, "sleep 600": -1} {
		cmd := exec.Command("sh", "-c", script)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		p, err := Hold(cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		if want >= 0 {
			if err := p.Wait(); err != nil {
				t.Fatal(err)
			}
		}
		if got := p.Status(); got != want {
			t.Errorf("%s: status %d, want %d", script, got, want)
		}
		if err := p.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		_ = p.Close()
	}
}
