package agentd

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// reaped is a process that was reaped before anything was known of it.
type reaped struct {
	pid    int
	status uint32
	at     time.Time
}

// reapedMax bounds how many are kept: a process is adopted at once.
const reapedMax = 256

// expect says that a process may be adopted soon, or with -1 that it has been.
func (c *children) expect(change int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.expected += change; c.expected == 0 {
		c.unknown = nil
	}
}

// note keeps how a process ended that may be adopted yet; c is locked.
func (c *children) note(one reaped) {
	if c.expected == 0 {
		return
	}
	c.unknown = append(c.unknown, one)
	c.unknown = c.unknown[max(0, len(c.unknown)-reapedMax):]
}

// adopt makes a process that was started for the agent, and is its child, one of spawn's. It may have ended by now.
// pidfd tells it from others that have had its pid.
func (c *children) adopt(pid, pidfd int, ended func(uint32, time.Time)) *spawned {
	c.mu.Lock()
	defer c.mu.Unlock()
	one := &spawned{pid: pid, ended: ended}
	if err := unix.PidfdSendSignal(pidfd, 0, nil, 0); err != unix.ESRCH {
		c.runs[pid] = one
		return one
	}
	end := reaped{status: unknownStatus, at: time.Now()}
	for _, u := range c.unknown {
		if u.pid == pid {
			end = u
		}
	}
	ended(end.status, end.at)
	return one
}

// unknownStatus is that of a process whose own was not kept.
const unknownStatus = 255

// endStrays ends the children that nothing is known of. The caller knows that none is to be adopted.
func (c *children) endStrays() error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return fmt.Errorf("list processes: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || c.runs[pid] != nil || parentOf(pid) != os.Getpid() {
			continue
		}
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && err != unix.ESRCH {
			return fmt.Errorf("end process %d: %w", pid, err)
		}
	}
	return nil
}

// parentOf answers the parent of a process; 0: it has gone.
func parentOf(pid int) int {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	f := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:]) // the name before it may have anything
	if len(f) < 2 {
		return 0
	}
	ppid, _ := strconv.Atoi(string(f[1]))
	return ppid
}
