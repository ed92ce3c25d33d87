package sandboxprocess

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// mostKiB is what the program may hold: a page of its file, its stack, and what the kernel maps.
const mostKiB = 64

// pss of a process, in KiB.
func pss(t *testing.T, pid int) (kib int) {
	t.Helper()
	rollup, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if errors.Is(err, unix.ESRCH) { // it has no memory at this moment, in an exec
		return math.MaxInt
	}
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := bytes.Cut(rollup, []byte("\nPss:"))
	if _, err := fmt.Sscan(string(rest), &kib); err != nil {
		t.Fatalf("process %d has no Pss: %v", pid, err)
	}
	return kib
}

// The kernel takes the program, which sleeps in a call until it is killed.
func TestProgram(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the program is written for amd64 alone")
	}
	file := filepath.Join(t.TempDir(), programName)
	code, err := program()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, code, 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(file)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	state := func() string {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		return string(bytes.Fields(stat)[2])
	}
	for end := time.Now().Add(time.Minute); state() != "S" && time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
	if is, kib := state(), pss(t, cmd.Process.Pid); is != "S" || kib > mostKiB {
		t.Errorf("the program is in state %s with %d KiB, want S with at most %d", is, kib, mostKiB)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err == nil || err.Error() != "signal: killed" {
		t.Errorf("the program ended with %v", err)
	}
}
