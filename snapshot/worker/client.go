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
	"sync"
	"syscall"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/internal/errno"
	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/cache"
)

// Client starts a worker for each job.
type Client struct {
	// Command of the worker, such as {"/proc/self/exe", "worker"}.
	Command []string
	// Cgroup directories whose cgroup.procs takes the worker before it gets its job.
	Cgroup []string
	// Env is added to the caller's.
	Env []string
	// Cache, if not nil, keeps what is pushed, and what is read to be restored.
	Cache *cache.Cache

	evictions sync.WaitGroup // under way; tests wait for them
}

// Push returns when the manifest is stored and verified. Cancelling ctx kills the
// worker; no manifest is stored then.
func (c *Client) Push(ctx context.Context, j PushJob, notify func(Progress)) (snapshot.Receipt, error) {
	files := fileList{}
	for i := range j.Spaces {
		files.add(j.Spaces[i].File)
		files.add(j.Spaces[i].Clone)
		files.add(j.Spaces[i].Notes)
	}
	for i := range j.Disks {
		files.add(j.Disks[i].File)
	}
	files.add(j.State)
	files.add(j.Table)
	files.add(j.Golden)
	files.add(j.Next)
	files.add(j.Finished)
	j.Tracking.addTo(&files)
	j.Running = j.Live != nil
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
	lease := c.join(&j)
	data, err := json.Marshal(j)
	if err != nil {
		lease.Close()
		return line{}, fmt.Errorf("worker: %w", err)
	}
	type result struct {
		line
		err error
	}
	done := make(chan result, 2)
	go func() {
		// The kernel sends the death signal when the thread ends that forked.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		t := conversation{data: append(data, '\n'), notify: notify, evict: c.evict}
		switch {
		case j.Push != nil:
			t.live = j.Push.Live
		case j.Send != nil:
			t.live, t.ended = j.Send.Live, j.Send.Ended
			t.ready = func(l line) { done <- result{l, nil} }
		case j.Receive != nil:
			t.arrival = j.Receive.Arrival
		case j.LazyFill != nil:
			t.ram, t.whole = j.LazyFill.RAM, j.LazyFill.Whole
		}
		l, err := c.exchange(ctx, t, files)
		done <- result{l, err}
		if j.Send != nil && j.Send.Over != nil {
			j.Send.Over()
		}
	}()
	r := <-done
	c.leave(lease, r.Cache)
	return r.line, r.err
}

// conversation is what is said to a worker.
type conversation struct {
	data    []byte // the job
	live    snapshot.Live
	arrival Arrival
	ram     func(context.Context) (*WaitingRAM, error)
	whole   func(context.Context) error
	notify  func(Progress)
	evict   func()
	ended   func(digest string)
	ready   func(line) // takes an answer that counts before the worker has ended
}

func (c *Client) exchange(ctx context.Context, t conversation, files fileList) (line, error) {
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
	last, err := c.converse(ctx, cmd.Process.Pid, stdin, stdout, t)
	if err != nil {
		_ = cmd.Process.Kill()
	}
	waited := cmd.Wait()
	var failed liveError
	stdin.Close()
	switch {
	case ctx.Err() != nil:
		return line{}, fmt.Errorf("worker: %w", context.Cause(ctx))
	case last.Error != nil:
		return line{}, last.Error
	case errors.As(err, &failed):
		return line{}, failed.error // the worker was killed for it
	case err != nil || waited != nil:
		class := endClass(err, waited)
		if errdefs.IsUnavailable(class) {
			class = fmt.Errorf("%s: %w", errno.WasKilled, class)
		}
		return line{}, fmt.Errorf("worker ended without an answer: %w: %s: %w", errors.Join(err, waited), stderr.b.Bytes(),
			class)
	}
	return last, nil
}

// endClass is of a worker that ended without an answer; err is why no more was said to it. One that
// somebody has killed, which the kernel does first where memory is short, can be started again.
func endClass(err, waited error) error {
	if (err == nil || errors.Is(err, syscall.EPIPE)) && errno.Killed(waited) {
		return errdefs.ErrUnavailable
	}
	if class := errno.Resolve(err); class != nil && class != errdefs.ErrUnknown {
		return class
	}
	return errdefs.ErrInternal
}

// firstToGo is the most of proc(5)'s oom_score_adj: a VM is worth more than what is done about it.
const firstToGo = "1000"

// converse moves the worker into its cgroups, gives it the job and reads its lines.
func (c *Client) converse(ctx context.Context, pid int, stdin io.Writer, stdout io.Reader, t conversation) (line,
	error) {
	// Where this cannot be said the job is none the worse for it.
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte(firstToGo), 0)
	for _, dir := range c.Cgroup {
		err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
		if err != nil {
			return line{}, fmt.Errorf("move worker: %w", err)
		}
	}
	// A worker that reads no more has ended, and said why before: that counts.
	_, deaf := stdin.Write(t.data)
	if deaf != nil && !errors.Is(deaf, syscall.EPIPE) {
		return line{}, fmt.Errorf("give worker its job: %w", deaf)
	}
	lines := bufio.NewScanner(stdout)
	lines.Buffer(nil, maxJob)
	lines.Split(wholeLines)
	var last line
	for lines.Scan() {
		last = line{}
		if err := json.Unmarshal(lines.Bytes(), &last); err != nil {
			return line{}, fmt.Errorf("read worker: %w", err)
		}
		if last.Progress != nil && t.notify != nil {
			t.notify(*last.Progress)
		}
		if last.Kept {
			t.evict()
		}
		if last.Ended != "" && t.ended != nil {
			t.ended(last.Ended)
		}
		if last.Sent != nil && t.ready != nil {
			t.ready(last)
		}
		if deaf != nil {
			continue
		}
		if deaf = t.obey(ctx, last, stdin); deaf != nil && !errors.Is(deaf, syscall.EPIPE) {
			return line{}, deaf
		}
	}
	if last.Error != nil {
		deaf = nil
	}
	return last, errors.Join(deaf, lines.Err())
}

// wholeLines splits as bufio.ScanLines does, and leaves out a last line without an end: who wrote
// it was killed in its midst.
func wholeLines(data []byte, atEOF bool) (advance int, token []byte, err error) {
	if atEOF && bytes.IndexByte(data, '\n') < 0 {
		return len(data), nil, nil
	}
	return bufio.ScanLines(data, atEOF)
}

// obey does what a line of the worker orders.
func (t conversation) obey(ctx context.Context, l line, stdin io.Writer) error {
	switch {
	case l.Prepare:
		return t.prepare(ctx, stdin)
	case l.Pause:
		return t.pause(ctx, stdin)
	case l.RAM && t.ram != nil:
		m, err := t.ram(ctx)
		if err != nil {
			return respond(stdin, reply{}, err)
		}
		return respond(stdin, reply{Regions: m.Regions}, nil)
	case l.Whole && t.whole != nil:
		return respond(stdin, reply{}, t.whole(ctx))
	case l.Complete, l.Launched, l.Arrived != nil:
		return t.arrive(ctx, l, stdin)
	}
	return nil
}

// respond answers what a worker has asked for; an err goes to the worker.
func respond(stdin io.Writer, r reply, err error) error {
	if err != nil {
		r.Error = newRemoteError(err)
	}
	if err := json.NewEncoder(stdin).Encode(r); err != nil {
		return fmt.Errorf("answer worker: %w", err)
	}
	return nil
}

// liveError is one of the VM, not of the worker.
type liveError struct{ error }

// prepare has the VM's pause prepared for the worker.
func (t conversation) prepare(ctx context.Context, stdin io.Writer) error {
	if t.live == nil {
		return errAnswer
	}
	if err := t.live.Prepare(ctx); err != nil {
		return liveError{err}
	}
	if err := json.NewEncoder(stdin).Encode(reply{Prepared: true}); err != nil {
		return fmt.Errorf("tell worker that the pause is prepared: %w", err)
	}
	return nil
}

// pause has the VM paused and saved for the worker.
func (t conversation) pause(ctx context.Context, stdin io.Writer) error {
	if t.live == nil {
		return errAnswer
	}
	if err := t.live.Pause(ctx); err != nil {
		return liveError{err}
	}
	enc := json.NewEncoder(stdin)
	if err := enc.Encode(reply{Paused: true}); err != nil {
		return fmt.Errorf("tell worker of the pause: %w", err)
	}
	resume, err := t.live.Save(ctx)
	if err != nil {
		return liveError{err}
	}
	if err := enc.Encode(reply{Saved: true, Resume: resume}); err != nil {
		return fmt.Errorf("tell worker of the state: %w", err)
	}
	return nil
}

// tail keeps the start of what a dying worker says.
type tail struct{ b bytes.Buffer }

func (t *tail) Write(p []byte) (int, error) {
	if room := 4<<10 - t.b.Len(); room > 0 {
		t.b.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}
