package stage

import (
	"os/exec"
	"testing"

	"godwit.dev/godwit/internal/osthread"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// An init that was reaped is joined no more, whatever process has its pid by now.
func TestJoinAfterReap(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err := osthread.Do(func() error { return join(fd) }); !errdefs.IsFailedPrecondition(err) {
		t.Error(err)
	}
	unix.Close(fd)
}
