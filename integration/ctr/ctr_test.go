//go:build integration

// Package ctr tests what a user of containerd sees: ctr's own commands on real VMs. What
// it compares was told by the guest, by ctr, or by the node's file system.
package ctr

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

const runtimeName = "io.containerd.godwit.v1"

// stepTimeout bounds one command, which may boot a VM, on a machine without KVM.
var stepTimeout = harness.Slow(2 * time.Minute)

// result is a command that ended.
type result struct {
	out, errs string
	code      int // -1: a signal ended it
}

// command is a ctr that runs.
type command struct {
	cmd          *exec.Cmd
	stdout, errs *output
	done         chan struct{}
}

func newCommand() *command {
	done := make(chan struct{})
	return &command{stdout: &output{ended: done}, errs: &output{}, done: done}
}

// output is what a command wrote, readable while it runs.
type output struct {
	mu    sync.Mutex
	buf   bytes.Buffer
	ended <-chan struct{} // closed when nothing more comes; nil: not known
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// start starts ctr on the node; the test's end kills it. A nil stdin is empty.
func start(t *testing.T, n *harness.Node, stdin io.Reader, args ...string) *command {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	c := newCommand()
	c.cmd = n.Command(ctx, "ctr", n.CtrArgs(args...)...)
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = stdin, c.stdout, c.errs
	if err := n.Enter(c.cmd.Start); err != nil {
		cancel()
		t.Fatalf("ctr %s: %v", strings.Join(args, " "), err)
	}
	go func() {
		_ = c.cmd.Wait()
		close(c.done)
	}()
	t.Cleanup(func() { cancel(); <-c.done })
	return c
}

// wait waits for the end of a command.
func (c *command) wait(t *testing.T) result {
	t.Helper()
	select {
	case <-c.done:
		return result{c.stdout.String(), c.errs.String(), c.cmd.ProcessState.ExitCode()}
	case <-time.After(stepTimeout):
		t.Fatalf("%s: no end after %s; stdout %q, stderr %q", c.cmd, stepTimeout, tail(c.stdout.String()),
			tail(c.errs.String()))
	}
	return result{}
}

// ctr runs ctr to its end, whatever that is.
func ctr(t *testing.T, n *harness.Node, stdin io.Reader, args ...string) result {
	t.Helper()
	return start(t, n, stdin, args...).wait(t)
}

// runArgs of a VM that ctr waits for and removes.
func runArgs(more ...string) []string {
	return append([]string{"run", "--rm", "--runtime", runtimeName}, more...)
}

// script runs a shell script in a VM of its own.
func script(id, text string, flags ...string) []string {
	return append(runArgs(flags...), images.Busybox, id, "sh", "-c", text)
}

// execArgs of a shell script in a VM that runs.
func execArgs(vm, id, text string, flags ...string) []string {
	return append(append([]string{"task", "exec", "--exec-id", id}, flags...), vm, "sh", "-c", text)
}

// detached starts a VM that runs on when its ctr ends. Its stdin has no end: with an empty one ctr closes the VM's
// before it detaches, or not, as it comes.
func detached(t *testing.T, n *harness.Node, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stepTimeout)
	defer cancel()
	cmd := n.Command(ctx, "ctr", n.CtrArgs(append([]string{"run", "-d", "--runtime", runtimeName}, args...)...)...)
	pipe, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	var errs bytes.Buffer
	cmd.Stderr = &errs
	if err := n.Enter(cmd.Start); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		t.Fatalf("ctr run -d %s: %v: %s", strings.Join(args, " "), err, errs.String())
	}
}

// want compares what matters of a result; want.errs is a part of stderr.
func (r result) want(t *testing.T, want result) {
	t.Helper()
	if r.code != want.code || r.out != want.out || !strings.Contains(r.errs, want.errs) {
		t.Errorf("exit code %d, stdout %q, stderr %q\nwant %d, %q, %q", r.code, tail(r.out), tail(r.errs), want.code,
			tail(want.out), want.errs)
	}
}

// says waits until a command has written a text, which it does not any more once it has
// ended.
func (o *output) says(t *testing.T, text string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err := harness.Poll(ctx, stepTimeout, func(context.Context) error {
		select {
		case <-o.ended:
			cancel()
		default:
		}
		if strings.Contains(o.String(), text) {
			return nil
		}
		return errors.New("output is " + tail(o.String()))
	})
	if err != nil {
		t.Fatalf("wait for %q: %v", text, err)
	}
}

func tail(s string) string { return s[max(0, len(s)-2000):] }
