package shim

import (
	"bytes"
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/guest/client"
	"godwit.dev/godwit/internal/durable"
	"godwit.dev/godwit/internal/retry"
)

const (
	readWait  = 10 * time.Second       // how long a Read may wait
	silence   = time.Second            // see dry
	retryWait = 200 * time.Millisecond // after a call that failed
	chunk     = 64 << 10               // of stdin
	readMax   = 1 << 20                // of output
)

// pumps carry the stdio of one process while the guest can be asked. They are stopped
// before a capture and started again after it.
type pumps struct {
	id      string
	streams *streams
	alive   context.Context // ends with the process
	die     context.CancelFunc
	exit    *agentv1.WaitResponse // says where its output ends; set by then
	drained sync.WaitGroup

	mu      sync.Mutex
	offsets client.Offsets
	flow    context.Context // of what runs
	cancel  context.CancelFunc
	running sync.WaitGroup
	input   chan []byte             // from stdin; one reader for the life of the process
	done    map[agentv1.Stream]bool // all that the ended process wrote is out, or never will be

	finished map[agentv1.Stream]bool // nothing comes any more
	kept     bool                    // see rescue
}

func newPumps(id string, st *streams, from client.Offsets) *pumps {
	p := &pumps{id: id, streams: st, offsets: from, done: map[agentv1.Stream]bool{}, finished: map[agentv1.Stream]bool{}}
	p.alive, p.die = context.WithCancel(context.Background())
	p.drained.Add(len(p.sinks()))
	if st.stdin != nil && !from.StdinDone {
		p.input = make(chan []byte)
		go p.readStdin()
	}
	return p
}

// readStdin ends with the stream: at its end of file or when it is closed.
func (p *pumps) readStdin() {
	defer close(p.input)
	for buf := make([]byte, chunk); ; {
		n, err := p.streams.stdin.Read(buf)
		if n > 0 {
			select {
			case p.input <- bytes.Clone(buf[:n]):
			case <-p.alive.Done():
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// start lets the streams flow through agent until stop.
func (p *pumps) start(ctx context.Context, agent agentv1.AgentService) {
	ctx, cancel := context.WithCancel(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.flow, p.cancel = ctx, cancel
	if p.kept {
		cancel()
		return
	}
	for _, s := range p.sinks() {
		p.running.Go(func() { p.output(ctx, agent, s) })
	}
	if p.input != nil || len(p.offsets.Pending) > 0 {
		p.running.Go(func() { p.feed(ctx, agent) })
	}
}

// stop returns when nothing moves any more; what was under way counts or does not, as
// the offsets tell.
func (p *pumps) stop() client.Offsets {
	p.mu.Lock()
	cancel := p.cancel
	p.mu.Unlock()
	if cancel != nil {
		cancel()
	}
	p.running.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.offsets
}

// end says that the process is gone, and where its output ends: outputs drain, then
// drained is done.
func (p *pumps) end(exit *agentv1.WaitResponse) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.over() {
		p.exit = exit
		p.die()
	}
}

// dry reports whether all that the ended process wrote to a stream has come, with at. A
// guest of an earlier build does not know; there, silence is taken for it.
func (p *pumps) dry(stream agentv1.Stream, at uint64, silent bool) bool {
	switch {
	case !p.exit.GetSettled():
		return silent
	case stream == agentv1.Stream_STREAM_STDOUT:
		return at >= p.exit.GetStdoutEnd()
	}
	return at >= p.exit.GetStderrEnd()
}

// output moves one stream. Once the process has ended, the stream counts as drained where
// its output ends: a child of the process may hold it open for ever, and what that still
// writes goes on flowing.
func (p *pumps) output(ctx context.Context, agent agentv1.AgentService, s sink) {
	stream, to, offset := s.stream, s.to, s.offset
	defer interrupt(ctx, to)()
	at := p.load(offset)
	for silent := false; ctx.Err() == nil; {
		over := p.over()
		if over && p.dry(stream, at, silent) {
			p.drain(stream)
		}
		wait := readWait
		if over && !p.exit.GetSettled() {
			wait = silence
		}
		r, err := p.read(ctx, agent, &agentv1.ReadRequest{
			Id: p.id, Stream: stream, Offset: at, Max: readMax, WaitMs: uint32(wait.Milliseconds()),
		}, over)
		if errdefs.IsNotFound(err) {
			p.finish(stream)
			return
		}
		if err != nil {
			if p.over() && ctx.Err() == nil {
				p.drain(stream)
			}
			retry.Sleep(ctx, retryWait)
			continue
		}
		silent = over && len(r.GetData()) == 0
		if len(r.GetData()) > 0 {
			n, full, err := p.hand(ctx, s, r.GetData())
			at = r.GetOffset() + uint64(n)
			p.save(offset, at)
			s.too.write(ctx, r.GetData()[:n])
			if full {
				retry.Sleep(ctx, retryWait) // a log file: it goes on when there is space
				continue
			}
			if err != nil {
				p.finish(stream)
				return
			}
		}
		if r.GetEof() && ctx.Err() == nil {
			p.finish(stream)
			closeMet(to) // the client's end of file
			s.too.close()
			return
		}
	}
}

// hand writes to the client, and answers how much of data is done with, and whether the rest waits
// for space in a log. What nobody can read any more is done with: the process is not to wait for
// that. An error says that the shim itself has closed the stream.
func (p *pumps) hand(ctx context.Context, s sink, data []byte) (n int, full bool, err error) {
	n, err = s.write(data)
	switch {
	case err == nil || ctx.Err() != nil:
		return n, false, nil
	case errors.Is(err, os.ErrClosed):
		return n, false, err
	case durable.IsFull(err) && !p.over():
		return n, true, nil
	}
	return len(data), false, nil
}

// interrupt ends writes to a stream with ctx, until the function that it returns has: no
// later write is met.
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
func (p *pumps) read(ctx context.Context, agent agentv1.AgentService, req *agentv1.ReadRequest, over bool) (*agentv1.ReadResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, readWait+readSlack)
	defer cancel()
	if !over {
		defer context.AfterFunc(p.alive, cancel)()
	}
	begun := time.Now()
	r, err := agent.Read(ctx, req)
	early := time.Since(begun) < time.Duration(req.GetWaitMs())*time.Millisecond/2
	if err == nil && early && len(r.GetData()) == 0 && !r.GetEof() {
		retry.Sleep(ctx, retryWait) // a guest that does not wait must not make the host spin
	}
	if err != nil && !over && p.over() {
		return &agentv1.ReadResponse{Offset: req.GetOffset()}, nil // ask again, as over
	}
	return r, err
}

func (p *pumps) over() bool { return p.alive.Err() != nil }

func (p *pumps) drain(stream agentv1.Stream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.done[stream] {
		p.done[stream] = true
		p.drained.Done()
	}
}

// waitDrained returns when all output that the ended process has written is where
// containerd wanted it, when nothing of it has moved for drainBound, or at the end of ctx.
func (p *pumps) waitDrained(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		p.drained.Wait()
		close(done)
	}()
	step := drainBound / 10
	tick := time.NewTicker(step)
	defer tick.Stop()
	at := p.moved()
	for still := time.Duration(0); still < drainBound && ctx.Err() == nil; {
		select {
		case <-done:
			return
		case <-ctx.Done():
		case <-tick.C:
			// What still moves may be a child's, for ever, where the guest cannot tell.
			if now := p.moved(); now != at && p.exit.GetSettled() {
				at, still = now, 0
			} else if p.flowing() { // a capture stops the streams, and is nobody's fault
				still += step
			}
		}
	}
	for _, s := range p.sinks() {
		p.drain(s.stream)
	}
}

// moved is how much output containerd has.
func (p *pumps) moved() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.offsets.Stdout + p.offsets.Stderr
}

// flowing reports whether the streams have been started and not been stopped.
func (p *pumps) flowing() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.flow != nil && p.flow.Err() == nil
}

func (p *pumps) load(offset *uint64) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return *offset
}

func (p *pumps) save(offset *uint64, at uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	*offset = at
}
