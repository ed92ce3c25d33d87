package stdio

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/containerd/errdefs"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/internal/durable"
	"godwit.dev/godwit/internal/retry"
)

// output is one output of a process.
type output struct {
	stream agentv1.Stream
	file   *os.File
	fifo   *clientFifo // of a client that attaches later; nil: none can
	log    *LogFile    // that file is; nil: it is none, or has no bound
	offset *uint64     // in the pump's offsets; its lock guards it
}

// outputs are the outputs that there are.
func (p *Pump) outputs() (all []output) {
	for _, s := range []output{
		{agentv1.Stream_STREAM_STDOUT, p.streams.stdout, p.streams.outFifo, p.streams.log, &p.offsets.Stdout},
		{agentv1.Stream_STREAM_STDERR, p.streams.stderr, p.streams.errFifo, p.streams.log, &p.offsets.Stderr},
	} {
		if s.file != nil {
			all = append(all, s)
		}
	}
	return all
}

// readOutput moves one stream from the guest to its file. Once the process has ended, the stream counts as drained
// where its output ends: a child of the process may hold it open for ever, and what that still writes goes on flowing.
func (p *Pump) readOutput(ctx context.Context, agent Guest, s output) {
	stream, to, offset := s.stream, s.file, s.offset
	defer interrupt(ctx, to)()
	at := p.load(offset)
	for silent := false; ctx.Err() == nil; {
		over := p.ended()
		if over && p.atEnd(stream, at, silent) {
			p.markDrained(stream)
		}
		wait := readWait
		if over && !p.exit.GetSettled() {
			wait = silenceBound
		}
		r, err := p.read(ctx, agent, &agentv1.ReadRequest{
			Id: p.id, Stream: stream, Offset: at, Max: readMax, WaitMs: uint32(wait.Milliseconds()),
		}, over)
		if errdefs.IsNotFound(err) {
			p.markFinished(stream)
			return
		}
		if err != nil {
			if p.ended() && ctx.Err() == nil {
				p.markDrained(stream)
			}
			retry.Sleep(ctx, retryPause)
			continue
		}
		silent = over && len(r.GetData()) == 0
		if len(r.GetData()) > 0 {
			n, full, err := p.deliver(ctx, s, r.GetData())
			at = r.GetOffset() + uint64(n)
			p.save(offset, at)
			s.fifo.write(ctx, r.GetData()[:n])
			if full {
				retry.Sleep(ctx, retryPause) // a log file: it goes on when there is space
				continue
			}
			if err != nil {
				p.markFinished(stream)
				return
			}
		}
		if r.GetEof() && ctx.Err() == nil {
			p.markFinished(stream)
			closeOnceOpened(to) // the client's end of file
			s.fifo.close()
			return
		}
	}
}

// deliver writes to the client, and answers how much of data is done with, and whether the rest waits
// for space in a log. What no client can read any more is done with: the process does not wait for it. An error says
// that this process has closed the stream.
func (p *Pump) deliver(ctx context.Context, s output, data []byte) (n int, full bool, err error) {
	n, err = s.write(data)
	switch {
	case err == nil || ctx.Err() != nil:
		return n, false, nil
	case errors.Is(err, os.ErrClosed):
		return n, false, err
	case durable.IsFull(err) && !p.ended():
		return n, true, nil
	}
	return len(data), false, nil
}

// interrupt ends writes to a stream when ctx ends. After the function that it returns has returned,
// no write is ended any more.
func interrupt(ctx context.Context, to *os.File) (end func()) {
	_ = to.SetWriteDeadline(time.Time{}) // a plain file has none
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		_ = to.SetWriteDeadline(time.Now())
	})
	return func() {
		if !stop() {
			<-done
		}
	}
}

// readSlack is what an answer may take beyond the time that it was asked to wait.
const readSlack = 5 * time.Second

// read is cut short when the process ends meanwhile: its end says where to stop.
func (p *Pump) read(ctx context.Context, agent Guest, req *agentv1.ReadRequest, over bool) (*agentv1.ReadResponse,
	error) {
	ctx, cancel := context.WithTimeout(ctx, readWait+readSlack)
	defer cancel()
	if !over {
		defer context.AfterFunc(p.process, cancel)()
	}
	begun := time.Now()
	r, err := agent.Read(ctx, req)
	early := time.Since(begun) < time.Duration(req.GetWaitMs())*time.Millisecond/2
	if err == nil && early && len(r.GetData()) == 0 && !r.GetEof() {
		retry.Sleep(ctx, retryPause) // a guest that does not wait must not make the host spin
	}
	if err != nil && !over && p.ended() {
		return &agentv1.ReadResponse{Offset: req.GetOffset()}, nil // ask again, as over
	}
	return r, err
}

// atEnd reports whether all that the ended process wrote to a stream has come, with at. A
// guest of an earlier build does not know; there, silence is taken for it.
func (p *Pump) atEnd(stream agentv1.Stream, at uint64, silent bool) bool {
	switch {
	case !p.exit.GetSettled():
		return silent
	case stream == agentv1.Stream_STREAM_STDOUT:
		return at >= p.exit.GetStdoutEnd()
	}
	return at >= p.exit.GetStderrEnd()
}

// markFinished notes that nothing more of a stream can come, or go.
func (p *Pump) markFinished(stream agentv1.Stream) {
	p.markDrained(stream)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.finished[stream] = true
}

func (p *Pump) isFinished(stream agentv1.Stream) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.finished[stream]
}

// write is Write of an output, in a log that has room for it. A log that cannot be rotated
// is written to all the same, unless the disk is full.
func (s output) write(data []byte) (int, error) {
	if err := s.log.makeRoom(s.file, len(data)); durable.IsFull(err) {
		return 0, err
	}
	at := time.Now()
	n, err := s.file.Write(data)
	s.log.note(s.file, n, at)
	return n, err
}
