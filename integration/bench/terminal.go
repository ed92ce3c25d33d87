package bench

import (
	"context"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"godwit.dev/godwit/integration/harness"
)

// terminal times 7 MB of lines from a file of the VM, through a pipe and through a terminal in turn.
func (b *bench) terminal(ctx context.Context, vm string, note func(string, float64)) error {
	if _, err := b.node.RunCtr(ctx, "task", "exec", "--exec-id", "lines", vm, "/bin/sh", "-c",
		"yes 0123456789012345678901234567890123456789012345678901234567890123456789 | head -c 7100000 >/lines"); err != nil {
		return err
	}
	times := map[bool][]float64{}
	for i := range 4 {
		for _, tty := range []bool{false, true} {
			took, err := b.cat(ctx, vm, fmt.Sprintf("cat%d.%t", i, tty), tty)
			if err != nil {
				return err
			}
			if i > 0 { // as in output
				times[tty] = append(times[tty], ms(took))
			}
		}
	}
	pipe, tty := median(times[false]), median(times[true])
	note("7_mb_pipe_ms", pipe)
	note("7_mb_terminal_ms", tty)
	note("terminal_to_pipe", tty/pipe)
	return nil
}

// cat has a process of the VM print the lines, and answers how long that took.
func (b *bench) cat(ctx context.Context, vm, id string, tty bool) (time.Duration, error) {
	args := []string{"--address", b.node.Socket, "task", "exec", "--exec-id", id}
	if tty {
		args = append(args, "--tty")
	}
	cmd := b.node.Command(ctx, "ctr", append(args, vm, "/bin/cat", "/lines")...)
	counted := make(chan int64, 1)
	var near io.Closer
	if tty {
		master, slave, err := harness.OpenPTY()
		if err != nil {
			return 0, err
		}
		defer master.Close()
		cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
		near = slave
		go count(master, counted)
	} else {
		from, to, err := os.Pipe()
		if err != nil {
			return 0, err
		}
		defer from.Close()
		cmd.Stdout, near = to, to
		go count(from, counted)
	}
	begun := time.Now()
	err := b.node.Enter(cmd.Start)
	_ = near.Close()
	if err == nil {
		err = cmd.Wait()
	}
	if n := <-counted; err == nil && n < 7_100_000 {
		err = fmt.Errorf("%d bytes came", n)
	}
	return time.Since(begun), err
}

// count what comes until the last writer has ended. A terminal answers EIO then.
func count(from io.Reader, n chan<- int64) {
	all, _ := io.Copy(io.Discard, from)
	n <- all
}
