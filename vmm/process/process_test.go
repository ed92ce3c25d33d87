package process

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestKillClosed: who kills may come a moment after the one who saw the process end, and closed it. That is no failure.
func TestKillClosed(t *testing.T) {
	p, err := Hold(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	nothing := func(int) (struct{}, error) { return struct{}{}, unix.EBADF }
	if _, err := Control(p.pidfd, nothing); !errors.Is(err, os.ErrClosed) {
		t.Errorf("control of a closed file: got %v, want %v", err, os.ErrClosed)
	}
	if err := p.Kill(); err != nil {
		t.Error(err)
	}
}
