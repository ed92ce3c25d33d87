package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	eventsapi "github.com/containerd/containerd/api/services/ttrpc/events/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/protobuf"
	"github.com/containerd/containerd/v2/pkg/ttrpcutil"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"github.com/containerd/typeurl/v2"
)

// forwardBound is how long containerd may take for one event.
const forwardBound = 5 * time.Second

// forwarder hands events to containerd. It tries once: the publisher of containerd's
// library repeats a failed event after those that came later, and gives up while
// containerd restarts.
type forwarder struct{ client *ttrpcutil.Client }

func newForwarder(address string) (*forwarder, error) {
	client, err := ttrpcutil.NewClient(address)
	if err != nil {
		return nil, err
	}
	return &forwarder{client}, nil
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

// forward connects again after containerd has closed the connection.
func (f *forwarder) forward(ctx context.Context, req *eventsapi.ForwardRequest) error {
	err := f.once(ctx, req)
	if !errors.Is(err, ttrpc.ErrClosed) {
		return err
	}
	if err := f.client.Reconnect(); err != nil {
		return fmt.Errorf("%w: %w", err, errdefs.ErrUnavailable)
	}
	return f.once(ctx, req)
}

func (f *forwarder) once(ctx context.Context, req *eventsapi.ForwardRequest) error {
	service, err := f.client.EventsService()
	if err != nil {
		return fmt.Errorf("%w: %w", err, errdefs.ErrUnavailable)
	}
	ctx, cancel := context.WithTimeout(ctx, forwardBound)
	defer cancel()
	_, err = service.Forward(ctx, req)
	if errors.Is(err, ttrpc.ErrClosed) || ctx.Err() != nil {
		return fmt.Errorf("forward event: %w: %w", err, errdefs.ErrUnavailable)
	}
	return errgrpc.ToNative(err)
}
