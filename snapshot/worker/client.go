package worker

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/snapshot"
)

// Client starts a worker for each job.
type Client struct {
	// Command of the worker, such as {"/proc/self/exe", "worker"}.
	Command []string
	// Cgroup directories whose cgroup.procs takes the worker before it gets its job.
	Cgroup []string
	// Env is added to the caller's.
	Env []string
}

// Push returns when the manifest is stored and verified. Cancelling ctx kills the
// worker; no manifest is stored then.
func (c *Client) Push(ctx context.Context, j PushJob, notify func(Progress)) (snapshot.Receipt, error) {
	files := fileList{}
	for i := range j.Spaces {
		files.add(j.Spaces[i].File)
	}
	for i := range j.Disks {
		files.add(j.Disks[i].File)
	}
	files.add(j.State)
	files.add(j.Table)
	l, err := c.run(ctx, job{Push: &j}, files, notify)
	if err == nil && l.Receipt == nil {
		err = errAnswer
	}
	if err != nil {
		return snapshot.Receipt{}, err
	}
	return *l.Receipt, nil
}

// Open asks what a snapshot is, before anything is reserved for it.
func (c *Client) Open(ctx context.Context, j OpenJob) (*Opened, error) {
	l, err := c.run(ctx, job{Open: &j}, nil, nil)
	if err == nil && (l.Opened == nil || l.Opened.Config == nil) {
		err = errAnswer
	}
	return l.Opened, err
}

// Verify reads a snapshot whole. A snapshot that is wrong is a verdict, no error; one
// whose manifest, config or index is wrong is an error of Open's classes.
func (c *Client) Verify(ctx context.Context, j VerifyJob, notify func(Progress)) (snapshot.Verdict, error) {
	l, err := c.run(ctx, job{Verify: &j}, nil, notify)
	if err == nil && l.Verdict == nil {
		err = errAnswer
	}
	if err != nil {
		return snapshot.Verdict{}, err
	}
	return *l.Verdict, nil
}

// Fill writes the snapshot into the job's files. After an error they must not be used.
func (c *Client) Fill(ctx context.Context, j FillJob, notify func(Progress)) error {
	files := fileList{}
	for i := range j.Spaces {
		files.add(j.Spaces[i].File)
	}
	for i := range j.Disks {
		files.add(j.Disks[i].File)
	}
	files.add(j.State)
	files.add(j.Table)
	l, err := c.run(ctx, job{Fill: &j}, files, notify)
	if err == nil && l.Filled == nil {
		err = errAnswer
	}
	return err
}

var errAnswer = fmt.Errorf("worker: answer of another kind: %w", errdefs.ErrInternal)

// fileList numbers the files as the worker will see them.
type fileList []*os.File

func (l *fileList) add(f *File) {
	if f == nil {
		return
	}
	f.fd = 3 + len(*l)
	*l = append(*l, f.File)
}

// run starts a worker, feeds it and returns its last line.
func (c *Client) run(ctx context.Context, j job, files fileList, notify func(Progress)) (line, error) {
	data, err := json.Marshal(j)
	if err != nil {
		return line{}, fmt.Errorf("worker: %w", err)
	}
	type result struct {
		line
		err error
	}
	done := make(chan result, 1)
	go func() {
		// The kernel sends the death signal when the thread ends that forked.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		l, err := c.exchange(ctx, append(data, '\n'), files, notify)
		done <- result{l, err}
	}()
	r := <-done
	return r.line, r.err
}

func (c *Client) exchange(ctx context.Context, data []byte, files fileList, notify func(Progress)) (line, error) {
	cmd := exec.CommandContext(ctx, c.Command[0], c.Command[1:]...)
	cmd.Args[0] = os.Args[0] // what ps shows, also where the command is a link of /proc
	cmd.ExtraFiles = files
	cmd.Env = append(os.Environ(), c.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var stderr tail
	cmd.Stderr = &stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return line{}, fmt.Errorf("worker: %w", err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		stdin.Close()
		return line{}, fmt.Errorf("worker: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return line{}, fmt.Errorf("start worker %s: %w", c.Command[0], err)
	}
	last, err := c.converse(cmd.Process.Pid, stdin, stdout, data, notify)
	if err != nil {
		_ = cmd.Process.Kill()
	}
	waited := cmd.Wait()
	stdin.Close()
	switch {
	case ctx.Err() != nil:
		return line{}, fmt.Errorf("worker: %w", context.Cause(ctx))
	case last.Error != nil:
		return line{}, last.Error
	case err != nil || waited != nil:
		return line{}, fmt.Errorf("worker ended without an answer: %w: %s: %w", errors.Join(err, waited), stderr.b.Bytes(), errdefs.ErrInternal)
	}
	return last, nil
}

// converse moves the worker into its cgroups, gives it the job and reads its lines.
func (c *Client) converse(pid int, stdin io.Writer, stdout io.Reader, data []byte, notify func(Progress)) (line, error) {
	for _, dir := range c.Cgroup {
		err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
		if err != nil {
			return line{}, fmt.Errorf("move worker: %w", err)
		}
	}
	if _, err := stdin.Write(data); err != nil {
		return line{}, fmt.Errorf("give worker its job: %w", err)
	}
	lines := bufio.NewScanner(stdout)
	lines.Buffer(nil, maxJob)
	var last line
	for lines.Scan() {
		last = line{}
		if err := json.Unmarshal(lines.Bytes(), &last); err != nil {
			return line{}, fmt.Errorf("read worker: %w", err)
		}
		if last.Progress != nil && notify != nil {
			notify(*last.Progress)
		}
	}
	return last, lines.Err()
}

// tail keeps the start of what a dying worker says.
type tail struct{ b bytes.Buffer }

func (t *tail) Write(p []byte) (int, error) {
	if room := 4<<10 - t.b.Len(); room > 0 {
		t.b.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}
