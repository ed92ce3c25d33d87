package stdio

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	agentv1 "godwit.dev/godwit/api/agent/v1"
)

// restBound is how long the end of a VM waits for the next byte of output that the guest holds: a
// guest that is slow hands over all of it. A variable for the tests.
var restBound = 3 * time.Second

const (
	// restMax is more than a guest holds of one stream.
	restMax = 4 << 20
	// restWait is when a stream without more to come is taken to have no more.
	restWait = 200 * time.Millisecond
)

// DrainGuest takes over what the guest holds of the outputs, before the guest goes: a client
// that reads late finds it, as it would in the pipe of a process of this host.
func (p *Pump) DrainGuest(ctx context.Context, agent Guest) {
	p.mu.Lock()
	p.guestGone = true // a Start from now on starts nothing
	p.mu.Unlock()
	p.Stop()
	var all sync.WaitGroup
	for _, s := range p.outputs() {
		if p.isFinished(s.stream) {
			closeOnceOpened(s.file)
			s.fifo.close()
			continue
		}
		all.Go(func() {
			rest := p.readRest(ctx, agent, s)
			go p.writeRest(s, rest)
		})
	}
	all.Wait()
}

// readRest reads a stream to where the output of its process ends.
func (p *Pump) readRest(ctx context.Context, agent Guest, s output) (rest []byte) {
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
		if r.GetEof() || silent && (!p.ended() || p.atEnd(s.stream, at, true)) {
			return rest
		}
	}
	return rest
}

// writeRest writes the rest for as long as the client takes, or until the streams are closed.
func (p *Pump) writeRest(s output, rest []byte) {
	defer p.markDrained(s.stream)
	defer s.fifo.close()
	defer closeOnceOpened(s.file) // the client's end of file
	for len(rest) > 0 {
		_ = s.file.SetWriteDeadline(time.Time{}) // a pump that was stopped may have left one
		n, err := s.write(rest)
		s.fifo.write(context.Background(), rest[:n])
		rest = rest[n:]
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
	}
}

// closeAfterVM closes the streams of a process whose VM has gone, but for outputs whose rest is
// on its way to the client.
func (p *Pump) closeAfterVM() {
	p.mu.Lock()
	writing := p.guestGone
	p.mu.Unlock()
	if !writing {
		for _, s := range p.outputs() {
			closeOnceOpened(s.file)
		}
		p.streams.Close()
		return
	}
	for _, f := range []*os.File{p.streams.stdin, p.streams.stdinWriter} {
		if f != nil {
			f.Close()
		}
	}
}

// unreported is the exit of a process whose VM has ended before the guest reported it.
var unreported = &agentv1.WaitResponse{Settled: true}

// EndWithVM is End for a process whose VM has ended: the guest may not have reported its exit. The
// streams close, but for outputs whose rest is on its way to the client.
func (p *Pump) EndWithVM() {
	p.End(unreported)
	p.closeAfterVM()
}

// Reported is how the guest said that the process ended; nil if it has not.
func (p *Pump) Reported() *agentv1.WaitResponse {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.exit == unreported {
		return nil
	}
	return p.exit
}
