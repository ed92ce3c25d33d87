package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	agentv1 "godwit.dev/godwit/api/agent/v1"

	"github.com/containerd/errdefs"
)

// Exit is how a process ended.
type Exit struct {
	Status uint32
	At     time.Time
	OOM    bool
}

// WaitExit blocks until the process has ended. It may be called many times and by
// many, also after the end.
func (a *Agent) WaitExit(ctx context.Context, id string) (Exit, error) {
	r, err := a.Wait(ctx, &agentv1.WaitRequest{Id: id})
	if err != nil {
		return Exit{}, err
	}
	return Exit{Status: r.ExitStatus, At: time.Unix(0, r.ExitedAtUnixNano), OOM: r.Oom}, nil
}

// Offsets is how far the streams of a process have been carried. Who goes on with them
// hands it to NewStreams.
type Offsets struct {
	Stdin  uint64 `json:"stdin"`  // bytes that the guest has accepted
	Stdout uint64 `json:"stdout"` // bytes that were written to the host's sink
	Stderr uint64 `json:"stderr"`
	// Pending are bytes that were read from the host's stdin and that the guest has not
	// accepted. They are written first.
	Pending   []byte `json:"pending,omitempty"`
	StdinDone bool   `json:"stdinDone,omitempty"` // the host's stdin has ended after Pending
}

// Streams carries the stdio of one process for a client of the agent alone. Tests and
// measurements of the agent use it; the shim has pumps of its own. Each copy method runs at most
// once at a time.
type Streams struct {
	agent *Agent
	id    string

	mu  sync.Mutex
	off Offsets
}

// NewStreams returns the streams of the process id, which go on from from.
func (a *Agent) NewStreams(id string, from Offsets) *Streams {
	return &Streams{agent: a, id: id, off: from}
}

// Offsets says how far the streams are. It is exact when the copy methods have
// returned; while they run, bytes may be on their way.
func (s *Streams) Offsets() Offsets {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.off
	o.Pending = append([]byte(nil), o.Pending...)
	return o
}

// CopyStdout writes the process's output to w until it ends, nil, or ctx does. A byte
// is acknowledged to the guest after w has taken it.
func (s *Streams) CopyStdout(ctx context.Context, w io.Writer) error {
	return s.copyOut(ctx, agentv1.Stream_STREAM_STDOUT, &s.off.Stdout, w)
}

// CopyStderr is CopyStdout for stderr.
func (s *Streams) CopyStderr(ctx context.Context, w io.Writer) error {
	return s.copyOut(ctx, agentv1.Stream_STREAM_STDERR, &s.off.Stderr, w)
}

// readWait is how long the guest holds a Read that has nothing to answer.
const (
	readWait = 60 * time.Second
	readMax  = 1 << 20
)

func (s *Streams) copyOut(ctx context.Context, stream agentv1.Stream, at *uint64, w io.Writer) error {
	for {
		s.mu.Lock()
		offset := *at
		s.mu.Unlock()
		r, err := s.agent.Read(ctx, &agentv1.ReadRequest{
			Id: s.id, Stream: stream, Offset: offset, Max: readMax,
			WaitMs: uint32(readWait.Milliseconds()),
		})
		if err != nil {
			return err
		}
		n, err := w.Write(r.Data)
		s.mu.Lock()
		*at = r.Offset + uint64(n)
		s.mu.Unlock()
		if err != nil {
			return err
		}
		if r.Eof {
			return nil
		}
	}
}

// CopyStdin hands r to the process until r ends, which closes the process's stdin, or
// the process closes it itself, or ctx ends. Bytes taken from r are never lost: what
// the guest has not accepted is in Offsets. It returns only after a Read of r has
// returned, so the caller closes r to end it.
func (s *Streams) CopyStdin(ctx context.Context, r io.Reader) error {
	buf := make([]byte, 64<<10)
	for {
		if closed, err := s.flush(ctx); closed || err != nil {
			return err
		}
		s.mu.Lock()
		done, offset := s.off.StdinDone, s.off.Stdin
		s.mu.Unlock()
		if done {
			_, err := s.agent.CloseStdin(ctx, &agentv1.CloseStdinRequest{Id: s.id, Offset: offset})
			return err
		}
		n, err := r.Read(buf)
		s.mu.Lock()
		s.off.Pending = append(s.off.Pending, buf[:n]...)
		s.off.StdinDone = errors.Is(err, io.EOF)
		s.mu.Unlock()
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
	}
}

// flush writes what is pending. It reports whether the process has closed its stdin.
func (s *Streams) flush(ctx context.Context) (closed bool, err error) {
	for {
		s.mu.Lock()
		data, offset := s.off.Pending, s.off.Stdin
		s.mu.Unlock()
		if len(data) == 0 {
			return false, nil
		}
		r, err := s.agent.Write(ctx, &agentv1.WriteRequest{Id: s.id, Offset: offset, Data: data})
		if errdefs.IsNotFound(err) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		if r.Closed {
			return true, nil
		}
		if r.Offset < offset || r.Offset > offset+uint64(len(data)) {
			return false, fmt.Errorf("write stdin of %q: guest is at byte %d, host at %d: %w", s.id, r.Offset, offset,
				errdefs.ErrDataLoss)
		}
		s.mu.Lock()
		s.off.Pending = s.off.Pending[r.Offset-offset:]
		s.off.Stdin = r.Offset
		s.mu.Unlock()
	}
}
