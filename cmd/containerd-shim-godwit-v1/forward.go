package main

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

// forwardBound is how long containerd may take for one event.
const forwardBound = 5 * time.Second

// forwarder hands events to containerd, one at a time. It tries once: the publisher of
// containerd's library repeats a failed event after those that came later, gives up
// while containerd restarts, and waits for a socket that is not there.
type forwarder struct {
	path   string
	client *ttrpc.Client // nil: not connected
}

func newForwarder(address string) *forwarder {
	return &forwarder{path: strings.TrimPrefix(address, "unix://")}
}

func (f *forwarder) Publish(ctx context.Context, topic string, event any) error {
	ns, err := namespaces.NamespaceRequired(ctx)
	if err != nil {
		return err
	}
	data, err := typeurl.MarshalAnyToProto(event)
	if err != nil {
		return fmt.Errorf("encode event: %w", err)
	}
	return f.forward(ctx, &eventsapi.ForwardRequest{Envelope: &types.Envelope{
		Timestamp: protobuf.ToTimestamp(time.Now()), Namespace: ns, Topic: topic, Event: data,
	}})
}

// forward connects again where containerd has closed the connection.
func (f *forwarder) forward(ctx context.Context, req *eventsapi.ForwardRequest) error {
	ctx, cancel := context.WithTimeout(ctx, forwardBound)
	defer cancel()
	fresh := f.client == nil
	err := f.once(ctx, req)
	if errors.Is(err, ttrpc.ErrClosed) && !fresh {
		err = f.once(ctx, req)
	}
	if err != nil && (errors.Is(err, ttrpc.ErrClosed) || f.client == nil || ctx.Err() != nil) {
		return fmt.Errorf("forward event: %w: %w", err, errdefs.ErrUnavailable)
	}
	return errgrpc.ToNative(err)
}

// once leaves no client behind that cannot be used.
func (f *forwarder) once(ctx context.Context, req *eventsapi.ForwardRequest) error {
	if f.client == nil {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", f.path)
		if err != nil {
			return err
		}
		f.client = ttrpc.NewClient(conn)
	}
	_, err := eventsapi.NewTTRPCEventsClient(f.client).Forward(ctx, req)
	if errors.Is(err, ttrpc.ErrClosed) {
		f.client.Close()
		f.client = nil
	}
	return err
}
