package shim

import (
	"context"
	"time"

	"github.com/containerd/errdefs"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/internal/retry"
)

// feed moves stdin. What was taken from the fifo stays pending until the guest says
// that it has it.
func (p *pumps) feed(ctx context.Context, agent agentv1.AgentService) {
	for ctx.Err() == nil {
		if !p.flush(ctx, agent) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-p.alive.Done():
			return
		case data, ok := <-p.input:
			if !ok {
				p.closeStdin(ctx, agent)
				return
			}
			p.mu.Lock()
			p.offsets.Pending = data
			p.mu.Unlock()
		}
	}
}

// flush writes what is pending; false says that there is nobody to write to.
func (p *pumps) flush(ctx context.Context, agent agentv1.AgentService) bool {
	for ctx.Err() == nil && !p.over() {
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
			retry.Sleep(ctx, retryWait)
			continue
		}
		if r.GetClosed() {
			p.accept(at+uint64(len(data)), nil)
			continue
		}
		n := min(uint64(len(data)), r.GetOffset()-min(r.GetOffset(), at))
		p.accept(at+n, data[n:])
		if n == 0 {
			retry.Sleep(ctx, unreadWait)
		}
	}
	return false
}

// unreadWait is how long a process is left alone that does not read.
const unreadWait = 5 * time.Millisecond

func (p *pumps) write(ctx context.Context, agent agentv1.AgentService, req *agentv1.WriteRequest) (*agentv1.WriteResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, readWait)
	defer cancel()
	return agent.Write(ctx, req)
}

func (p *pumps) accept(at uint64, rest []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.offsets.Stdin, p.offsets.Pending = at, rest
}

func (p *pumps) closeStdin(ctx context.Context, agent agentv1.AgentService) {
	for ctx.Err() == nil && !p.over() {
		_, err := agent.CloseStdin(ctx, &agentv1.CloseStdinRequest{Id: p.id, Offset: p.load(&p.offsets.Stdin)})
		if err == nil {
			p.mu.Lock()
			p.offsets.StdinDone = true
			p.mu.Unlock()
			return
		}
		retry.Sleep(ctx, retryWait)
	}
}
