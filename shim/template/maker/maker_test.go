package maker

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// A template's VM takes no CPU that a task wants, and no task ends for its memory:
// whichever thread of the maker starts the VMM.
func TestYield(t *testing.T) {
	const mark, threads = "GODWIT_TEST_YIELD", 8
	if os.Getenv(mark) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestYield$", "-test.v")
		cmd.Env = append(os.Environ(), mark+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // as godwitd starts the maker
		out, err := cmd.CombinedOutput()
		if n := strings.Count(string(out), "VMM has 19 1000\n"); err != nil || n != threads {
			t.Errorf("%d of %d have yielded, %v:\n%s", n, threads, err, out)
		}
		return
	}
	var ready, done sync.WaitGroup
	yielded := make(chan struct{})
	for range threads {
		ready.Add(1)
		done.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			ready.Done()
			<-yielded
			out, err := exec.Command("sh", "-c", "echo VMM has $(nice) $(cat /proc/self/oom_score_adj)").CombinedOutput()
			if err != nil {
				t.Error(err)
			}
			os.Stdout.Write(out)
		})
	}
	ready.Wait()
	if err := lowerPriority(); err != nil {
		t.Error(err)
	}
	close(yielded)
	done.Wait()
}
