package stdio

import (
	"bytes"
	"context"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/api/guesttool"
	"godwit.dev/godwit/internal/retry"
)

// readStdin reads what the client writes, for the life of the process. It ends with the stream: at
// its end of file, or when it is closed. A tool of the agent has one client: once that writes, its end is that of the
// stream, or a copy whose client was killed would wait in the guest for ever.
func (p *Pump) readStdin() {
	defer close(p.input)
	for buf := make([]byte, chunk); ; {
		n, err := p.streams.stdin.Read(buf)
		if n > 0 {
			if strings.HasPrefix(p.id, guesttool.ExecPrefix) {
				p.streams.CloseStdin()
			}
			select {
			case p.input <- bytes.Clone(buf[:n]):
			case <-p.process.Done():
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// writeStdin writes to the guest. What was taken from the fifo stays pending until the guest says
// that it has it.
func (p *Pump) writeStdin(ctx context.Context, agent Guest) {
	for ctx.Err() == nil {
		if !p.writePending(ctx, agent) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-p.process.Done():
			return
		case data, ok := <-p.input:
			if !ok {
				p.endStdin(ctx, agent)
				return
			}
			p.mu.Lock()
			p.offsets.Pending = data
			p.mu.Unlock()
		}
	}
}

// writePending writes what is pending; false says that the guest has no such process.
func (p *Pump) writePending(ctx context.Context, agent Guest) bool {
	for ctx.Err() == nil && !p.ended() {
		p.mu.Lock()
		at, data := p.offsets.Stdin, p.offsets.Pending
		p.mu.Unlock()
		if len(data) == 0 {
			return true
		}
		r, err := p.write(ctx, agent, &agentv1.WriteRequest{Id: p.id, Offset: at, Data: data})
		if errdefs.IsNotFound(err) {
			return false
		}
		if err != nil {
			retry.Sleep(ctx, retryPause)
			continue
		}
		if r.GetClosed() {
			p.setStdin(at+uint64(len(data)), nil)
			continue
		}
		n := min(uint64(len(data)), r.GetOffset()-min(r.GetOffset(), at))
		p.setStdin(at+n, data[n:])
		if n == 0 {
			retry.Sleep(ctx, fullWait)
		}
	}
	return false
}

// fullWait is the pause after a write of which the process took nothing.
const fullWait = 5 * time.Millisecond

func (p *Pump) write(ctx context.Context, agent Guest, req *agentv1.WriteRequest) (*agentv1.WriteResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, readWait)
	defer cancel()
	return agent.Write(ctx, req)
}

func (p *Pump) setStdin(at uint64, rest []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.offsets.Stdin, p.offsets.Pending = at, rest
}

func (p *Pump) endStdin(ctx context.Context, agent Guest) {
	for ctx.Err() == nil && !p.ended() {
		_, err := agent.CloseStdin(ctx, &agentv1.CloseStdinRequest{Id: p.id, Offset: p.load(&p.offsets.Stdin)})
		if err == nil {
			p.mu.Lock()
			p.offsets.StdinDone = true
			p.mu.Unlock()
			return
		}
		retry.Sleep(ctx, retryPause)
	}
}
