package stdio

import (
	"context"
	"time"

	agentv1 "godwit.dev/godwit/api/agent/v1"
)

// drainBound is how long an exit waits while the output is not read: a reader that is
// slow gets all of it first. A variable for the tests.
var drainBound = 10 * time.Second

// WaitDrained returns when containerd has all output that the ended process has written. It also
// returns when no output has moved for drainBound, or at the end of ctx.
func (p *Pump) WaitDrained(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		p.drained.Wait()
		close(done)
	}()
	step := drainBound / 10
	tick := time.NewTicker(step)
	defer tick.Stop()
	at := p.outputBytes()
	for still := time.Duration(0); still < drainBound && ctx.Err() == nil; {
		select {
		case <-done:
			return
		case <-ctx.Done():
		case <-tick.C:
			// What still moves may be a child's, for ever, where the guest cannot tell.
			if now := p.outputBytes(); now != at && p.exit.GetSettled() {
				at, still = now, 0
			} else if p.flowing() { // a capture stops the streams, which is not the client's fault
				still += step
			}
		}
	}
	for _, s := range p.outputs() {
		p.markDrained(s.stream)
	}
}

// outputBytes is how much output containerd has.
func (p *Pump) outputBytes() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.offsets.Stdout + p.offsets.Stderr
}

// flowing reports whether the streams have been started and not been stopped.
func (p *Pump) flowing() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.flow != nil && p.flow.Err() == nil
}

func (p *Pump) markDrained(stream agentv1.Stream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.done[stream] {
		p.done[stream] = true
		p.drained.Done()
	}
}
