package initd

import (
	"fmt"
	"os"
	"strconv"

	"godwit.dev/godwit/guest/stage"
)

// yieldToWorkload makes the agent run after the container's processes where both want the
// same CPU: it does not interrupt a process for each piece of output, but comes when that
// waits or has had its turn, and then takes all there is. Threads that begin later inherit
// it, processes do not (stage.Schedule).
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
	return nil
}
