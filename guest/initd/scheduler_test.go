package initd

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Only the runtime's monitor may come late, whatever the order in which its number is
// listed: what another thread starts would inherit it.
func TestCalmMonitor(t *testing.T) {
	task, proc := t.TempDir(), t.TempDir()
	for _, tid := range []string{"1", "100", "20", "3"} {
		for _, dir := range []string{filepath.Join(task, tid), filepath.Join(proc, tid)} {
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(proc, tid, "timerslack_ns"), []byte("50000"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	threads, err := os.ReadDir(task)
	if err != nil {
		t.Fatal(err)
	}
	if err := setMonitorSlack(proc, threads); err != nil {
		t.Fatal(err)
	}
	for tid, want := range map[string]string{"1": "50000", "3": "4000000", "20": "50000", "100": "50000"} {
		if got, err := os.ReadFile(filepath.Join(proc, tid, "timerslack_ns")); err != nil || string(got) != want {
			t.Errorf("thread %s: %q, not %q: %v", tid, got, want, err)
		}
	}
}

// The monitor is the second thread of a Go program: while something computes, that one is
// in nanosleep again and again.
func TestMonitorIsTheSecondThread(t *testing.T) {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	var tids []int
	for _, thread := range threads {
		tid, err := strconv.Atoi(thread.Name())
		if err != nil {
			t.Fatal(err)
		}
		tids = append(tids, tid)
	}
	slices.Sort(tids)
	const nanosleep = "35 "
	path, seen := fmt.Sprintf("/proc/self/task/%d/syscall", tids[1]), []string{}
	for begun := time.Now(); time.Since(begun) < 10*time.Second; {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(string(data), nanosleep) {
			return
		}
		if call, _, _ := strings.Cut(string(data), " "); !slices.Contains(seen, call) {
			seen = append(seen, call)
		}
	}
	t.Errorf("thread %d is in calls %q, never in nanosleep", tids[1], seen)
}
