package initd

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"godwit.dev/godwit/guest/stage"
)

// yieldToWorkload makes the agent run after the container's processes where both want the same
// CPU. The agent does not interrupt a process for each piece of output. It comes when the
// process waits or has had its turn, and then takes all there is. Threads that begin later
// inherit this, processes do not (stage.Schedule).
func yieldToWorkload() error {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return fmt.Errorf("list threads: %w", err)
	}
	for _, thread := range threads {
		tid, err := strconv.Atoi(thread.Name())
		if err != nil {
			return fmt.Errorf("list threads: %w", err)
		}
		if err := stage.Schedule(tid, stage.Batch); err != nil {
			return err
		}
	}
	return setMonitorSlack("/proc", threads)
}

// calm is how late the monitor of the Go runtime may come: a tick of the kernel's clock.
const calm = 4 * time.Millisecond

// setMonitorSlack lets the thread by which the Go runtime watches the others come with the kernel's
// ticks. After each pause of the agent that thread sleeps fifty times for 20 us. Every timer and
// switch for it costs more without KVM than the agent's work in between. It is the thread that a
// program starts first. Threads that it makes inherit this, and what they start would: a stage sets it back.
func setMonitorSlack(proc string, threads []os.DirEntry) error {
	var tids []int
	for _, thread := range threads {
		if tid, err := strconv.Atoi(thread.Name()); err == nil {
			tids = append(tids, tid)
		}
	}
	slices.Sort(tids)
	if len(tids) < 2 {
		return nil
	}
	path := filepath.Join(proc, strconv.Itoa(tids[1]), "timerslack_ns")
	if err := os.WriteFile(path, fmt.Append(nil, calm.Nanoseconds()), 0); err != nil {
		return fmt.Errorf("calm the runtime's monitor: %w", err)
	}
	return nil
}
