package client

import (
	"context"
	"fmt"
	"time"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/guest/session"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
)

// stream is an output of a process.
type stream struct {
	id   string
	kind agentv1.Stream
}

// readDefault is what a Read that does not say how much returns at most.
const readDefault = 256 << 10

// Read implements agentv1.AgentService. What it answers has come in a lane of the session,
// separate from the calls, so that the guest handles bulk data once. The data is the caller's
// until the next Read of the same stream; there may be one at a time.
func (a *Agent) Read(ctx context.Context, r *agentv1.ReadRequest) (*agentv1.ReadResponse, error) {
	if !a.lanes { // a guest of an earlier build
		return call(ctx, a, agentv1.AgentService.Read, r)
	}
	size := int(r.Max)
	if size <= 0 {
		size = readDefault
	}
	return again(ctx, a, func(p *peer) (*agentv1.ReadResponse, error) {
		from := stream{r.Id, r.Stream}
		lane, err := p.lane(from, r.Offset)
		if err != nil {
			return nil, err
		}
		data, at, end, err := lane.Read(ctx, r.Offset, size, time.Duration(r.WaitMs)*time.Millisecond)
		if errdefs.IsNotFound(err) { // it may come, and is asked for anew then
			p.close(func(s stream) bool { return s == from && p.lanes[s] == lane })
		}
		if err != nil {
			return nil, err
		}
		return &agentv1.ReadResponse{Data: data, Offset: at, Eof: end}, nil
	})
}

// lane returns the lane of a stream, a new one from offset on if there is none.
func (p *peer) lane(s stream, offset uint64) (*session.Lane, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.lanes[s]; l != nil {
		return l, nil
	}
	name, err := proto.Marshal(&agentv1.ReadRequest{Id: s.id, Stream: s.kind})
	if err != nil {
		return nil, fmt.Errorf("read stream %v of %q: %w", s.kind, s.id, err)
	}
	if p.lanes == nil {
		p.lanes = make(map[stream]*session.Lane)
	}
	p.lanes[s] = p.conn.Lane(name, offset)
	return p.lanes[s], nil
}

// Remove implements agentv1.AgentService. Its streams end here, too, unless the guest says
// that the process runs.
func (a *Agent) Remove(ctx context.Context, r *agentv1.RemoveRequest) (*agentv1.RemoveResponse, error) {
	resp, err := call(ctx, a, agentv1.AgentService.Remove, r)
	a.mu.Lock()
	p := a.current
	a.mu.Unlock()
	if p != nil && !errdefs.IsFailedPrecondition(err) {
		p.close(func(s stream) bool { return s.id == r.Id })
	}
	return resp, err
}

// close closes lanes and forgets them.
func (p *peer) close(which func(stream) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s, l := range p.lanes {
		if which(s) {
			l.Close()
			delete(p.lanes, s)
		}
	}
}
