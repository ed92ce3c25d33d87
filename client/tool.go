package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"syscall"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"godwit.dev/godwit/api/guesttool"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// What is taken of a guest, which is not trusted.
const (
	answerMax = 16 << 20 // bytes of an answer
	reportMax = 64 << 10 // bytes of the end of what a tool says of itself
)

// tidyBound is what a tool that is told to end may take to remove what it has not finished.
const tidyBound = time.Second

// endBound is what the end of a process may take after its client has gone.
const endBound = 10 * time.Second

// runTool runs a tool of the agent in a VM (package guesttool). stdin and stdout may be nil.
func (c *Client) runTool(ctx context.Context, vm *nodev1.VM, args []string, stdin io.Reader, stdout io.Writer,
) (*guesttool.Report, error) {
	if err := c.refusePod(ctx, vm, podExec); err != nil {
		return nil, err
	}
	t, err := c.Task(ctx, vm)
	if err != nil {
		return nil, err
	}
	process := &specs.Process{Args: append([]string{guesttool.Command}, args...), Cwd: "/", Env: []string{"PATH=/"}}
	report := &tail{most: reportMax}
	run := &execution{task: t, name: c.name(vm), id: guesttool.ExecPrefix + strings.ToLower(rand.Text()[:16]),
		process: process, stdin: stdin, stdout: stdout, stderr: report}
	code, err := run.do(ctx)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil && strings.Contains(err.Error(), guesttool.Command):
		return nil, fmt.Errorf("%s was started by an earlier build of godwit, which has no %s in the guest. "+
			"Restart the VM to have it: %w", c.name(vm), args[0], errdefs.ErrNotImplemented)
	case err != nil:
		if gone := c.gone(ctx, vm); gone != nil {
			return nil, gone
		}
		return nil, err
	}
	r, ok := guesttool.ReadReport(report.String())
	if !ok {
		if gone := c.goneSoon(ctx, vm); gone != nil {
			return nil, gone
		}
		return nil, fmt.Errorf("the guest of %s ended %s with code %d and without a report. Run the command again: %w",
			c.name(vm), args[0], code, errdefs.ErrAborted)
	}
	return r, r.Err()
}

// ask has a tool write an answer.
func (c *Client) ask(ctx context.Context, vm *nodev1.VM, answer any, args ...string) error {
	out := &bounded{most: answerMax}
	if _, err := c.runTool(ctx, vm, args, nil, out); err != nil {
		return err
	}
	if err := json.Unmarshal(out.Bytes(), answer); err != nil {
		return fmt.Errorf("the guest of %s answers %s with what is no answer: %w: %w", c.name(vm), args[0], err,
			errdefs.ErrDataLoss)
	}
	return nil
}

// execution is one exec of a task.
type execution struct {
	task           *Task
	name           string // as the user calls the VM
	id             string
	process        *specs.Process
	stdin          io.Reader
	stdout, stderr io.Writer
}

// do runs it to its end, and answers its exit code. A context that ends has it ended.
func (e *execution) do(ctx context.Context) (uint32, error) {
	ctx = within(ctx, e.task.VM)
	creator, input := streamed(&Streams{Stdin: e.stdin, Stdout: e.stdout, Stderr: e.stderr}, false)
	p, err := e.task.Task.Exec(ctx, e.id, e.process, creator)
	if err != nil {
		return 0, fmt.Errorf("exec in %s: %w", e.name, err)
	}
	defer e.delete(ctx, p)
	exited, err := p.Wait(context.WithoutCancel(ctx))
	if err != nil {
		return 0, fmt.Errorf("wait for the exec in %s: %w", e.name, err)
	}
	if err := p.Start(ctx); err != nil {
		return 0, err
	}
	if input != nil {
		go input.tell(func() { _ = p.CloseIO(ctx, containerd.WithStdinCloser) })
	}
	select {
	case status := <-exited:
		p.IO().Wait()
		code, _, err := status.Result()
		return code, err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// delete ends the process if it runs still. A tool that is told to end takes away what it has not finished.
func (e *execution) delete(ctx context.Context, p containerd.Process) {
	ended, cancel := context.WithTimeout(context.WithoutCancel(ctx), endBound)
	defer cancel()
	if ctx.Err() != nil {
		exited, err := p.Wait(ended)
		if err == nil && p.Kill(ended, syscall.SIGTERM) == nil {
			select {
			case <-exited:
			case <-time.After(tidyBound):
			}
		}
		p.IO().Cancel()
	}
	_, _ = p.Delete(ended, containerd.WithProcessKill)
}

// closing tells of the end of a stream, once who reads it has written on all before it.
type closing struct {
	r      io.Reader
	err    error
	once   sync.Once
	closed chan struct{}
}

func (c *closing) Read(b []byte) (n int, err error) {
	if c.err == nil {
		if n, c.err = c.r.Read(b); n > 0 {
			return n, nil
		}
	}
	if c.err != nil {
		c.once.Do(func() { close(c.closed) })
	}
	return n, c.err
}

// bounded keeps what a guest writes, and refuses more than most bytes.
type bounded struct {
	bytes.Buffer
	most int
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.Len()+len(p) > b.most {
		return 0, fmt.Errorf("the guest answers with more than %d bytes: %w", b.most, errdefs.ErrResourceExhausted)
	}
	return b.Buffer.Write(p)
}

// tail keeps the last most bytes.
type tail struct {
	mu   sync.Mutex
	data []byte
	most int
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.data = append(t.data, p...)
	if over := len(t.data) - t.most; over > 0 {
		t.data = append(t.data[:0], t.data[over:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.data)
}
