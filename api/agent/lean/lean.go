// Package lean is the agent's protocol of package agentv1 for the guest: the same bytes, without
// protobuf's runtime. That runtime does work before main and at the first use of each message.
// On a machine that translates every instruction, this is a good part of a container's start.
// All but this file and wire.go is made from the .proto by `make generate`.
package lean

import "context"

// Service is the name that calls carry.
const Service = "godwit.agent.v1.Agent"

// Handler takes a request's bytes and answers the response's.
type Handler func(ctx context.Context, request []byte) ([]byte, error)

// message is what every message can do.
type message interface {
	// AppendTo appends the message's bytes; equal messages have equal bytes.
	AppendTo(b []byte) []byte
	// Unmarshal adds what b holds to the message, which may go on using b.
	Unmarshal(b []byte) error
	// Unknown reports whether fields came that this build does not know.
	Unknown() bool
}

// handle makes a Handler of a method of the service.
func handle[Q any, R any, PQ interface {
	*Q
	message
}, PR interface {
	*R
	message
}](do func(context.Context, PQ) (PR, error)) Handler {
	return func(ctx context.Context, request []byte) ([]byte, error) {
		q := PQ(new(Q))
		if err := q.Unmarshal(request); err != nil {
			return nil, err
		}
		r, err := do(ctx, q)
		if err != nil {
			return nil, err
		}
		return r.AppendTo(nil), nil
	}
}
