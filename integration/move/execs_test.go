//go:build integration

package move

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/namespaces"

	"godwit.dev/godwit/integration/harness"
)

// counting is an exec that counts to its stdout: what it says at its source is in a file.
type counting struct {
	t     *testing.T
	said  string
	ended <-chan containerd.ExitStatus
}

// counter ends with 7 where it is asked to end.
const counter = "trap 'exit 7' TERM; i=0; while busybox sleep 0.2; do echo exec $i; i=$((i+1)); done"

func counts(t *testing.T, n *side) *counting {
	t.Helper()
	c := &counting{t: t, said: n.log() + ".exec"}
	ctx := namespaces.WithNamespace(t.Context(), "default")
	task, err := n.load(ctx)
	if err != nil {
		t.Fatal(err)
	}
	spec, err := task.Spec(ctx)
	if err != nil {
		t.Fatal(err)
	}
	spec.Process.Args = []string{"/bin/busybox", "sh", "-c", counter}
	process, err := task.Exec(ctx, "along", spec.Process, cio.LogFile(c.said))
	if err != nil {
		t.Fatal(err)
	}
	if c.ended, err = process.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	if err := process.Start(ctx); err != nil {
		t.Fatal(err)
	}
	c.wantMore()
	return c
}

// log is where the output of tasks goes that come to the node.
func (s *side) log() string {
	return strings.NewReplacer("file://", "", "{namespace}", "default", "{id}", vm).Replace(s.cfg.StdioURI)
}

func (s *side) load(ctx context.Context) (containerd.Task, error) {
	container, err := s.task.LoadContainer(ctx, vm)
	if err != nil {
		return nil, err
	}
	return container.Task(ctx, nil)
}

// numbers answers the lines of the exec in a log, and wants them to count from first on.
func (c *counting) numbers(path string, first int) int {
	c.t.Helper()
	out, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		c.t.Fatal(err)
	}
	n := first
	for line := range strings.Lines(string(out)) {
		if !strings.HasPrefix(line, "exec ") || !strings.HasSuffix(line, "\n") {
			continue
		}
		if want := fmt.Sprintf("exec %d\n", n); line != want {
			c.t.Fatalf("%s: the exec says %q, want %q", path, line, want)
		}
		n++
	}
	return n - first
}

// more waits until there are some lines more than before.
func (c *counting) more(path string, first, before int) {
	c.t.Helper()
	err := harness.Poll(c.t.Context(), bound, func(context.Context) error {
		if n := c.numbers(path, first); n < before+3 {
			return fmt.Errorf("%s: the exec has said %d lines, and before %d", path, n, before)
		}
		return nil
	})
	if err != nil {
		c.t.Fatal(err)
	}
}

// wantMore wants every number once up to now, and some more.
func (c *counting) wantMore() {
	c.t.Helper()
	c.more(c.said, 0, c.numbers(c.said, 0))
}

// moved looks at the exec where its VM is by now: containerd there has it under its id, and it can be killed. Its
// output goes on in the task's log with the number after the last at the source. Its end is told with its own
// status. Who waited for it at the source has been told that its end is not known there.
func (c *counting) moved(to *side) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(c.t.Context(), "default"), bound)
	defer cancel()
	select {
	case s := <-c.ended:
		if s.ExitCode() != containerd.UnknownExitStatus {
			c.t.Errorf("at the source it ends with %d, %v", s.ExitCode(), s.Error())
		}
	case <-ctx.Done():
		c.t.Fatal("who waits at the source hears of no end")
	}
	c.more(to.log(), c.numbers(c.said, 0), 0)
	if err := end(ctx, to); err != nil {
		c.t.Errorf("end the exec: %v", err)
	}
}

// end kills the exec through containerd and wants its status.
func end(ctx context.Context, n *side) error {
	task, err := n.load(ctx)
	if err != nil {
		return err
	}
	process, err := task.LoadProcess(ctx, "along", nil)
	if err != nil {
		return err
	}
	over, err := process.Wait(ctx)
	if err != nil {
		return err
	}
	if err := process.Kill(ctx, syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case s := <-over:
		if s.ExitCode() != 7 || s.Error() != nil {
			return fmt.Errorf("it ended with %d, %w", s.ExitCode(), s.Error())
		}
	case <-ctx.Done():
		return fmt.Errorf("it does not end: %w", ctx.Err())
	}
	_, err = process.Delete(ctx)
	return err
}

// client is what a client has heard.
type client struct {
	mu  sync.Mutex
	all strings.Builder
}

func (h *client) Write(data []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.all.Write(data)
}

func (h *client) hears(text string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !strings.Contains(h.all.String(), text) {
		return fmt.Errorf("the client hears %q, not %q", h.all.String(), text)
	}
	return nil
}

// echoes starts an exec that says what it is told.
func echoes(t *testing.T, n *side) {
	t.Helper()
	ctx, out := namespaces.WithNamespace(t.Context(), "default"), &client{}
	task, err := n.load(ctx)
	if err != nil {
		t.Fatal(err)
	}
	spec, err := task.Spec(ctx)
	if err != nil {
		t.Fatal(err)
	}
	spec.Process.Args = []string{"/bin/busybox", "cat"}
	stdin, typing := io.Pipe()
	process, err := task.Exec(ctx, "echo", spec.Process, cio.NewCreator(cio.WithStreams(stdin, out, io.Discard),
		cio.WithFIFODir(filepath.Dir(n.log()))))
	if err == nil {
		err = process.Start(ctx)
	}
	if err == nil {
		_, err = fmt.Fprintln(typing, "at its source")
	}
	if err == nil {
		err = harness.Poll(ctx, bound, func(context.Context) error { return out.hears("at its source\n") })
	}
	if err != nil {
		t.Fatal(err)
	}
}

// attaches has a client attach to that exec where its VM is by now: it types, hears, and ends it
// by the end of its stdin.
func attaches(t *testing.T, n *side) {
	t.Helper()
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(t.Context(), "default"), bound)
	defer cancel()
	out := &client{}
	stdin, typing := io.Pipe()
	task, err := n.load(ctx)
	if err != nil {
		t.Fatal(err)
	}
	process, err := task.LoadProcess(ctx, "echo", cio.NewAttach(cio.WithStreams(stdin, out, io.Discard)))
	if err != nil {
		t.Fatal(err)
	}
	over, err := process.Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	err = harness.Poll(ctx, bound, func(context.Context) error { // the client's output may open after its stdin
		_, err := fmt.Fprintln(typing, "at its destination")
		return errors.Join(err, out.hears("at its destination\n"))
	})
	if err = errors.Join(err, typing.Close(), process.CloseIO(ctx, containerd.WithStdinCloser)); err != nil {
		t.Fatal(err)
	}
	if s := <-over; s.ExitCode() != 0 || s.Error() != nil {
		t.Errorf("it ended with %d, %v", s.ExitCode(), s.Error())
	}
	if _, err := process.Delete(ctx); err != nil {
		t.Error(err)
	}
}
