package client

import (
	"context"
	"fmt"

	agentv1 "godwit.dev/godwit/api/agent/v1"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
)

// maxList is the longest answer that lists processes, which is the longest message of ttrpc. A guest of an earlier
// build lists each exec that was not deleted, and sleeps in snapshots already: this must not keep it from waking.
const maxList = 4 << 20

// maxListed is how many entries such an answer has at most. An entry of two bytes decodes to many times that.
const maxListed = 1 << 17

// Restored implements agentv1.AgentService.
func (a *Agent) Restored(ctx context.Context, r *agentv1.RestoredRequest) (*agentv1.RestoredResponse, error) {
	return list[agentv1.RestoredResponse](ctx, a, "Restored", r)
}

// Processes implements agentv1.AgentService.
func (a *Agent) Processes(ctx context.Context, r *agentv1.ProcessesRequest) (*agentv1.ProcessesResponse, error) {
	return list[agentv1.ProcessesResponse](ctx, a, "Processes", r)
}

// list makes a call whose answer may be long. It is decoded only once its entries are counted.
func list[R any, M interface {
	*R
	proto.Message
}](ctx context.Context, a *Agent, method string, req proto.Message) (*R, error) {
	return again(ctx, a, func(p *peer) (*R, error) {
		raw := new(emptypb.Empty) // all fields are unknown to it, so that it keeps their bytes
		if err := p.client.Call(ctx, agentService, method, req, raw); err != nil {
			return nil, err
		}
		data, out := raw.ProtoReflect().GetUnknown(), new(R)
		if n := entries(data); n > maxListed {
			return nil, p.guard.end(fmt.Errorf("%w: %s lists %d processes, where at most %d are in order", errNonsense, method,
				n, maxListed))
		}
		return out, proto.Unmarshal(data, M(out))
	})
}

// agentService is the name of the service in agent.proto.
const agentService = "godwit.agent.v1.Agent"

// entries counts the fields of a message that are messages or text.
func entries(data []byte) (n int) {
	for len(data) > 0 {
		_, kind, size := protowire.ConsumeField(data)
		if size < 0 {
			return n
		}
		if kind == protowire.BytesType {
			n++
		}
		data = data[size:]
	}
	return n
}
