package agentd

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// bystander is a process that has the pid of one which has ended. It is stopped, so that a SIGTERM
// stays pending; hit reports whether it got one.
func bystander(t *testing.T) (pid int, hit func() bool) {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	pid = cmd.Process.Pid
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED, nil); err != nil {
		t.Fatal(err)
	}
	return pid, func() bool {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(status), "\nShdPnd:\t") // proc_pid_status(5)
		line, _, _ := strings.Cut(rest, "\n")
		set, err := strconv.ParseUint(line, 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		return set&(1<<(unix.SIGTERM-1)) != 0
	}
}

// A kill of an exec that has ended does not hit another exec, which was given its pid.
func TestSignalSparesAnotherExecOfThePid(t *testing.T) {
	pid, hit := bystander(t)
	ended, runs := &spawned{pid: pid}, &spawned{pid: pid}
	c := &children{runs: map[int]*spawned{pid: runs}}
	for name, one := range map[string]*spawned{"has ended": ended, "was never started": nil} {
		if err := c.signal(one, unix.SIGTERM); err != unix.ESRCH || hit() {
			t.Errorf("signal one that %s = %v, or another exec was hit", name, err)
		}
	}
	if _, err := c.spawn("exec", nil, 0, ended, nil); err == nil {
		t.Error("a process was born in the namespace of another one")
	}
	if err := c.signal(runs, unix.SIGTERM); err != nil || !hit() {
		t.Errorf("signal the one that runs = %v", err)
	}
}

// A signal to all of a container does not hit a process that got the pid of another one. That
// one ended after the list was read.
func TestSignalAllSparesAnotherOfThePid(t *testing.T) {
	pid, hit := bystander(t)
	reads := 0
	list := func() ([]int, error) {
		if reads++; reads == 1 {
			return []int{pid}, nil
		}
		return nil, nil // who has the pid is in no cgroup of the container
	}
	if err := signalMembers(list, unix.SIGTERM); err != nil || hit() {
		t.Errorf("signal all = %v, or a process outside was hit", err)
	}
	if err := signalMembers(func() ([]int, error) { return []int{pid}, nil }, unix.SIGTERM); err != nil || !hit() {
		t.Errorf("signal all = %v, or the container's process got nothing", err)
	}
}

// The cgroup and the score of an exec that has ended are not given to a process that has its pid now.
func TestStartSparesAnotherOfThePid(t *testing.T) {
	pid, _ := bystander(t)
	ended, runs := &spawned{pid: pid}, &spawned{pid: pid}
	group := t.TempDir()
	s := &Service{children: &children{runs: map[int]*spawned{pid: runs}}}
	score := func() string {
		t.Helper()
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(data))
	}
	before, want := score(), 777
	spec := &specs.Process{OOMScoreAdj: &want}
	join, adjust := s.join(ended, cgroup(group)), s.adjustOOM(ended, spec)
	if _, err := os.Stat(filepath.Join(group, "cgroup.procs")); !errors.Is(join, unix.ESRCH) || err == nil {
		t.Errorf("join = %v, or another process has joined", join)
	}
	if got := score(); !errors.Is(adjust, unix.ESRCH) || got != before {
		t.Errorf("adjust = %v, the score of another process is %s", adjust, got)
	}
	if err := errors.Join(s.join(runs, cgroup(group)), s.adjustOOM(runs, spec)); err != nil || score() != "777" {
		t.Errorf("of the one that runs: %v, score %s", err, score())
	}
}
