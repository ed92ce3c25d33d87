package worker

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/store"
)

// maxJob bounds the line on stdin: an OCI spec of some megabytes would be one of
// thousands of mounts.
const maxJob = 16 << 20

// Main is the process. It reads one job from in, answers on out and returns the exit
// status: 0 if the job succeeded.
func Main(ctx context.Context, in io.Reader, out io.Writer) int {
	// Buffers of packs come and go: without a limit the collector would let twice of
	// them stand before it looks.
	debug.SetGCPercent(50)
	w := &answers{enc: json.NewEncoder(out)}
	r := bufio.NewReaderSize(in, 64<<10)
	j, err := readJob(r)
	if err != nil {
		w.write(line{Error: newRemoteError(err)})
		return 1
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		// Nothing more comes; the end means that the one who asked is gone.
		_, _ = io.Copy(io.Discard, r)
		cancel(fmt.Errorf("worker: its parent is gone: %w", context.Canceled))
	}()
	answer, err := j.run(ctx, w.progress)
	if err != nil {
		w.write(line{Error: newRemoteError(err)})
		return 1
	}
	w.write(answer)
	return 0
}

func readJob(r *bufio.Reader) (*job, error) {
	var data []byte
	for {
		part, err := r.ReadSlice('\n')
		data = append(data, part...)
		if err == nil {
			break
		}
		if err != bufio.ErrBufferFull || len(data) > maxJob {
			return nil, fmt.Errorf("worker: read job: %w: %w", err, errdefs.ErrInvalidArgument)
		}
	}
	j := new(job)
	if err := json.Unmarshal(data, j); err != nil {
		return nil, fmt.Errorf("worker: read job: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	return j, nil
}

func (j *job) run(ctx context.Context, notify func(Progress)) (line, error) {
	switch {
	case j.Push != nil:
		return j.Push.run(ctx, notify)
	case j.Open != nil:
		return j.Open.run(ctx)
	case j.Fill != nil:
		return j.Fill.run(ctx, notify)
	case j.Verify != nil:
		return j.Verify.run(ctx, notify)
	}
	return line{}, fmt.Errorf("worker: job without a kind: %w", errdefs.ErrInvalidArgument)
}

func (j *PushJob) run(ctx context.Context, notify func(Progress)) (line, error) {
	st, err := store.Open(j.Store)
	if err != nil {
		return line{}, err
	}
	o := snapshot.Options{
		Ref: j.Ref, Tag: j.Tag, Spec: j.Spec, Facts: j.Facts, Resume: j.Resume,
		Memory: j.Memory, Concurrency: j.Concurrency,
		Progress: func(p snapshot.Progress) { notify(Progress{Progress: p}) },
		Captured: func() { notify(Progress{Captured: time.Now()}) },
	}
	if j.Table != nil {
		// A table that a crash left unfinished costs a full push, no more.
		if o.Parent, err = snapshot.OpenTable(j.Table.File); err != nil && !errdefs.IsNotFound(err) {
			return line{}, err
		}
	}
	src := snapshot.Source{State: osFile(j.State)}
	for _, s := range j.Spaces {
		src.Spaces = append(src.Spaces, snapshot.Space{Name: s.Name, Disk: s.Disk, File: osFile(s.File)})
	}
	for _, d := range j.Disks {
		src.Disks = append(src.Disks, snapshot.Disk{ID: d.ID, Digest: d.Digest, File: osFile(d.File), From: d.From})
	}
	receipt, err := snapshot.Push(ctx, st, src, o)
	return line{Receipt: &receipt}, err
}

func (j *OpenJob) run(ctx context.Context) (line, error) {
	st, err := store.Open(j.Store)
	if err != nil {
		return line{}, err
	}
	s, err := snapshot.Open(ctx, st, j.Digest, j.Want)
	if err != nil {
		return line{}, err
	}
	o := &Opened{Config: s.Config}
	o.Stored, o.Pages = s.Bytes()
	return line{Opened: o}, nil
}

func (j *VerifyJob) run(ctx context.Context, notify func(Progress)) (line, error) {
	st, err := store.Open(j.Store)
	if err != nil {
		return line{}, err
	}
	s, err := snapshot.Open(ctx, st, j.Digest, nil)
	if err != nil {
		return line{}, err
	}
	verdict, err := s.Verify(ctx, snapshot.VerifyOptions{
		Memory: j.Memory, Progress: func(p snapshot.Progress) { notify(Progress{Progress: p}) },
	})
	return line{Verdict: &verdict}, err
}

func (j *FillJob) run(ctx context.Context, notify func(Progress)) (line, error) {
	st, err := store.Open(j.Store)
	if err != nil {
		return line{}, err
	}
	s, err := snapshot.Open(ctx, st, j.Digest, j.Want)
	if err != nil {
		return line{}, err
	}
	if j.State != nil {
		if err := s.State(ctx, io.NewOffsetWriter(j.State, 0)); err != nil {
			return line{}, err
		}
	}
	for _, d := range j.Disks {
		if err := s.Disk(ctx, d.Digest, io.NewOffsetWriter(d.File, 0)); err != nil {
			return line{}, err
		}
	}
	files := map[string]*os.File{}
	for _, sp := range j.Spaces {
		files[sp.Name] = osFile(sp.File)
	}
	err = s.Fill(ctx, files, snapshot.FillOptions{
		Memory: j.Memory, Concurrency: j.Concurrency, Table: osFile(j.Table), Repository: j.Store.Repository,
		Progress: func(p snapshot.Progress) { notify(Progress{Progress: p}) },
	})
	return line{Filled: &struct{}{}}, err
}

func osFile(f *File) *os.File {
	if f == nil {
		return nil
	}
	return f.File
}

// answers writes lines; progress of a step at most ten times a second.
type answers struct {
	mu   sync.Mutex
	enc  *json.Encoder
	last time.Time
}

func (a *answers) write(l line) {
	a.mu.Lock()
	defer a.mu.Unlock()
	_ = a.enc.Encode(l) // nobody reads it: stdin ends as well
}

func (a *answers) progress(p Progress) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now := time.Now(); p.Captured.IsZero() && p.Step != "commit" {
		if now.Sub(a.last) < 100*time.Millisecond {
			return
		}
		a.last = now
	}
	_ = a.enc.Encode(line{Progress: &p})
}
