package shim

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	agentv1 "godwit.dev/godwit/api/agent/v1"
)

// restBound is how long the end of a VM waits for the next byte of output that nobody has
// read: a guest that is slow hands over all of it. A variable for the tests.
var restBound = 3 * time.Second

const (
	// restMax is more than a guest holds of one stream.
	restMax = 4 << 20
	// restWait is when a stream without more to come is taken to have no more.
	restWait = 200 * time.Millisecond
)

// sink is one output of a process.
type sink struct {
	stream agentv1.Stream
	to     *os.File
	too    *follower
	log    *logFile
	offset *uint64
}

// sinks are the outputs that there are.
func (p *pumps) sinks() (all []sink) {
	for _, s := range []sink{
		{agentv1.Stream_STREAM_STDOUT, p.streams.stdout, p.streams.outToo, p.streams.log, &p.offsets.Stdout},
		{agentv1.Stream_STREAM_STDERR, p.streams.stderr, p.streams.errToo, p.streams.log, &p.offsets.Stderr},
	} {
		if s.to != nil {
			all = append(all, s)
		}
	}
	return all
}

// rescue takes over what the guest holds of the outputs, before the guest goes: a client
// that reads late finds it, as it would in the pipe of a process of this host.
func (p *pumps) rescue(ctx context.Context, agent agentv1.AgentService) {
	p.mu.Lock()
	p.kept = true // who starts the pumps now starts nothing
	p.mu.Unlock()
	p.stop()
	var all sync.WaitGroup
	for _, s := range p.sinks() {
		if p.isFinished(s.stream) {
			closeMet(s.to)
			s.too.close()
			continue
		}
		all.Go(func() {
			rest := p.pull(ctx, agent, s)
			go p.spill(s, rest)
		})
	}
	all.Wait()
}

// pull reads a stream to where the output of its process ends.
func (p *pumps) pull(ctx context.Context, agent agentv1.AgentService, s sink) (rest []byte) {
	at := p.load(s.offset)
	for last := time.Now(); len(rest) < restMax && time.Since(last) < restBound; {
		call, cancel := context.WithTimeout(ctx, restBound)
		r, err := agent.Read(call, &agentv1.ReadRequest{
			Id: p.id, Stream: s.stream, Offset: at, Max: readMax, WaitMs: uint32(restWait.Milliseconds()),
		})
		cancel()
		if err != nil {
			return rest
		}
		if len(r.GetData()) > 0 {
			last = time.Now()
		}
		rest = append(rest, r.GetData()...)
		at = r.GetOffset() + uint64(len(r.GetData()))
		silent := len(r.GetData()) == 0
		if r.GetEof() || silent && (!p.over() || p.dry(s.stream, at, true)) {
			return rest
		}
	}
	return rest
}

// spill writes the rest for as long as the client takes, or until the streams are closed.
func (p *pumps) spill(s sink, rest []byte) {
	defer p.drain(s.stream)
	defer s.too.close()
	defer closeMet(s.to) // the client's end of file
	for len(rest) > 0 {
		_ = s.to.SetWriteDeadline(time.Time{}) // a pump that was stopped may have left one
		n, err := s.write(rest)
		s.too.write(context.Background(), rest[:n])
		rest = rest[n:]
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
	}
}

// leave closes the streams of a process whose VM has gone, but for outputs whose rest is
// on its way to the client.
func (p *pumps) leave() {
	p.mu.Lock()
	kept := p.kept
	p.mu.Unlock()
	if !kept {
		for _, s := range p.sinks() {
			closeMet(s.to)
		}
		p.streams.close()
		return
	}
	for _, f := range []*os.File{p.streams.stdin, p.streams.hold} {
		if f != nil {
			f.Close()
		}
	}
}

// cutOff is the end of a process whose VM has ended without a word of it.
var cutOff = &agentv1.WaitResponse{Settled: true}

// reported is how the guest said that the process ended; nil if it has not.
func (p *pumps) reported() *agentv1.WaitResponse {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.exit == cutOff {
		return nil
	}
	return p.exit
}

// finish notes that nothing more of a stream can come, or go.
func (p *pumps) finish(stream agentv1.Stream) {
	p.drain(stream)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.finished[stream] = true
}

func (p *pumps) isFinished(stream agentv1.Stream) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.finished[stream]
}
