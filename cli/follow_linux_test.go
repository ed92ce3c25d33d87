package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// On a terminal the same stands after the bar.
func TestBarTellsATransfer(t *testing.T) {
	pty, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer pty.Close()
	if err := unix.IoctlSetPointerInt(int(pty.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(pty.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 200}); err != nil {
		t.Fatal(err)
	}
	p := newProgress(tty, false)
	p.update(sending(2, 3<<20, 5<<20, 24.4))
	p.finish()
	tty.Close()
	shown, _ := io.ReadAll(pty) // ends with EIO
	for _, want := range []string{"send pages", "50.00%", "pass 2, 3MiB left, 5MiB/s dirtied, 24 ms to stand still"} {
		if !strings.Contains(string(shown), want) {
			t.Errorf("%q does not show %q", shown, want)
		}
	}
}
