//go:build linux

package coredump

import (
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

const child = "GODWIT_TEST_FORBIDS"

// A program that forbids dumps has a limit of nothing, soft and hard, and cannot be dumped; its
// children have the limit.
func TestForbid(t *testing.T) {
	if os.Getenv(child) == "" {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestForbid$")
		cmd.Env = append(os.Environ(), child+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return
	}
	if err := Forbid(); err != nil {
		t.Fatal(err)
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &limit); err != nil || limit != (unix.Rlimit{}) {
		t.Errorf("limit %+v, %v", limit, err)
	}
	if dumps, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0); err != nil || dumps != 0 {
		t.Errorf("dumpable %d, %v", dumps, err)
	}
	out, err := exec.Command("/bin/sh", "-c", "ulimit -Hc").Output()
	if got := string(out); err != nil || got != "0\n" {
		t.Errorf("a child's limit is %q, %v", got, err)
	}
}
