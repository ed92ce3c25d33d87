//go:build integration

package ctr

import (
	"context"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/integration/harness"
)

// terminal is a ctr on a pseudo-terminal.
type terminal struct {
	*command
	master *os.File
}

// onTerminal starts ctr as a user at a terminal of the given size does.
func onTerminal(t *testing.T, n *harness.Node, rows, columns uint16, args ...string) *terminal {
	t.Helper()
	master, slave, err := harness.OpenPTY()
	if err != nil {
		t.Fatal(err)
	}
	term := &terminal{newCommand(), master}
	term.resize(t, rows, columns)
	ctx, cancel := context.WithCancel(t.Context())
	cmd := n.Command(ctx, "ctr", n.CtrArgs(args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	term.cmd = cmd
	err = n.Enter(cmd.Start)
	slave.Close()
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		// EIO at the end of the other side.
		_, _ = term.stdout.readFrom(master)
	}()
	go func() {
		_ = cmd.Wait()
		<-read
		close(term.done)
	}()
	t.Cleanup(func() { cancel(); <-term.done; master.Close() })
	return term
}

func (o *output) readFrom(f *os.File) (int64, error) {
	buf := make([]byte, 4096)
	for {
		n, err := f.Read(buf)
		if err != nil {
			return 0, err
		}
		_, _ = o.Write(buf[:n])
	}
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
