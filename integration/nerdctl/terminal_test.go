//go:build integration

package nerdctl

import (
	"context"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

// terminal is a nerdctl on a pseudo-terminal.
type terminal struct {
	*command
	master *os.File
}

func (s *site) onTerminal(t *testing.T, rows, columns uint16, args ...string) *terminal {
	t.Helper()
	master, slave, err := harness.OpenPTY()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	term := &terminal{&command{out: &output{}, errs: &output{}, done: make(chan struct{})}, master}
	term.resize(t, rows, columns)
	term.cmd = s.Command(ctx, "nerdctl", args...)
	term.cmd.Stdin, term.cmd.Stdout, term.cmd.Stderr = slave, slave, slave
	term.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	err = s.Enter(term.cmd.Start)
	slave.Close()
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	go term.read()
	t.Cleanup(func() { cancel(); <-term.done; master.Close() })
	return term
}

// read ends with EIO when no process holds the other side any more.
func (c *terminal) read() {
	buf := make([]byte, 4096)
	for {
		n, err := c.master.Read(buf)
		if err != nil {
			break
		}
		_, _ = c.out.Write(buf[:n])
	}
	_ = c.cmd.Wait()
	close(c.done)
}

func (c *terminal) resize(t *testing.T, rows, columns uint16) {
	t.Helper()
	if err := unix.IoctlSetWinsize(int(c.master.Fd()), unix.TIOCSWINSZ,
		&unix.Winsize{Row: rows, Col: columns}); err != nil {
		t.Fatal(err)
	}
}

func (c *terminal) types(t *testing.T, text string) {
	t.Helper()
	if _, err := c.master.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

// A shell on a terminal: its size and the size's changes, a second one by exec, detach by
// keys and attach, and its exit code.
func (s *site) testTerminal(t *testing.T) {
	run := s.onTerminal(t, 31, 77, "run", "-it", "--name", "shell", "--runtime", runtimeName, images.Busybox, "sh")
	run.out.says(t, "/ # ")
	run.types(t, "tty; stty size\n")
	run.out.says(t, "/dev/pts/0\r\n31 77\r\n")
	run.resize(t, 20, 50)
	run.types(t, "while ! stty size | grep '20 50'; do sleep 0.1; done; echo resi''zed\n")
	run.out.says(t, "resized")
	run.types(t, "here=kept; stty -echo\n")
	exec := s.onTerminal(t, 25, 80, "exec", "-it", "shell", "sh")
	exec.out.says(t, "/ # ")
	exec.types(t, "tty; exit\n")
	exec.out.says(t, "/dev/pts/1\r") // nerdctl may reset its terminal before the newline, which then adds to it
	if r := exec.wait(t); r.code != 0 {
		t.Errorf("exec -it: %+v", r)
	}
	run.types(t, "\x10\x11") // ctrl-p ctrl-q
	if r := run.wait(t); r.code != 0 {
		t.Errorf("detach: %+v", r)
	}
	if got := s.field(t, "shell", "{{.State.Status}}"); got != "running" {
		t.Errorf("after detach the container is %s", got)
	}
	attach := s.onTerminal(t, 31, 77, "attach", "shell")
	attach.types(t, "echo $here; exit 9\n")
	if r := attach.wait(t); r.code != 9 || !strings.Contains(r.out, "kept\r") {
		t.Errorf("attach: %+v", r)
	}
	s.ok(t, "rm", "shell")
}
