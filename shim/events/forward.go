package events

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	eventsapi "github.com/containerd/containerd/api/services/ttrpc/events/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/protobuf"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"github.com/containerd/typeurl/v2"
)

// forwardBound is how long one try waits for containerd. A variable for the tests.
var forwardBound = 5 * time.Second

// Forwarder is the Publisher that hands events to containerd, one at a time. It tries once. The publisher of
// containerd's library repeats a failed event after those that came later. It also gives up
// while containerd restarts, and waits for a socket that is not there.
type Forwarder struct {
	path   string
	client *ttrpc.Client // nil: not connected
	asked  *asked        // what containerd has not answered yet; nil: it has answered all
}

// asked is an event that containerd has got. One that is frozen for a while answers later, on the
// connection that it has: it is not told again what it has in hand.
type asked struct {
	event  any
	answer chan error
	end    context.CancelFunc
}

// NewForwarder takes the address of containerd's ttrpc socket: unix://PATH, or PATH.
func NewForwarder(address string) *Forwarder {
	return &Forwarder{path: strings.TrimPrefix(address, "unix://")}
}

// Publish tells containerd of an event, in the namespace of ctx. The error is Unavailable where
// containerd is not there or has not answered: the same event may then be given again.
func (f *Forwarder) Publish(ctx context.Context, topic string, event any) error {
	ns, err := namespaces.NamespaceRequired(ctx)
	if err != nil {
		return err
	}
	if f.asked != nil && f.asked.event != event { // it was given up
		f.asked.end()
		f.asked = nil
	}
	data, err := typeurl.MarshalAnyToProto(event)
	if err != nil {
		return fmt.Errorf("encode event: %w", err)
	}
	return f.forward(ctx, event, &eventsapi.ForwardRequest{Envelope: &types.Envelope{
		Timestamp: protobuf.ToTimestamp(time.Now()), Namespace: ns, Topic: topic, Event: data,
	}})
}

// forward connects again where containerd has closed the connection.
func (f *Forwarder) forward(ctx context.Context, event any, req *eventsapi.ForwardRequest) error {
	ctx, cancel := context.WithTimeout(ctx, forwardBound)
	defer cancel()
	fresh := f.client == nil
	err := f.once(ctx, event, req)
	if errors.Is(err, ttrpc.ErrClosed) && !fresh {
		err = f.once(ctx, event, req)
	}
	if err != nil && (errors.Is(err, ttrpc.ErrClosed) || f.client == nil || ctx.Err() != nil) {
		return fmt.Errorf("forward event: %w: %w", err, errdefs.ErrUnavailable)
	}
	return errgrpc.ToNative(err)
}

// once closes a client that cannot be used any more.
func (f *Forwarder) once(ctx context.Context, event any, req *eventsapi.ForwardRequest) error {
	if f.client == nil {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", f.path)
		if err != nil {
			return err
		}
		f.client = ttrpc.NewClient(conn)
	}
	if f.asked == nil {
		f.asked = ask(context.WithoutCancel(ctx), f.client, event, req)
	}
	var err error
	select {
	case err = <-f.asked.answer:
	case <-ctx.Done():
		return ctx.Err()
	}
	f.asked.end()
	f.asked = nil
	if errors.Is(err, ttrpc.ErrClosed) {
		f.client.Close()
		f.client = nil
	}
	return err
}

// ask waits for an answer for as long as the connection lives.
func ask(ctx context.Context, client *ttrpc.Client, event any, req *eventsapi.ForwardRequest) *asked {
	ctx, end := context.WithCancel(ctx)
	a := &asked{event: event, answer: make(chan error, 1), end: end}
	go func() {
		_, err := eventsapi.NewTTRPCEventsClient(client).Forward(ctx, req)
		a.answer <- err
	}()
	return a
}
