package socket

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/reflect/protoreflect"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/controller"
)

// openAgain is how long a store that does not answer is left alone.
const openAgain = time.Second

// Await opens a store that may come later than this daemon, and waits for it. A client that asks
// this node meanwhile hears what it waits for.
func Await[T any](ctx context.Context, socket string, open func(context.Context) (T, error)) (T, error) {
	st, err := open(ctx)
	if !errdefs.IsUnavailable(err) {
		return st, err
	}
	why := fmt.Errorf("godwitd waits for the store of the records: %w", err)
	slog.WarnContext(ctx, "godwitd waits for the store of the records", "error", err)
	server, serr := refusing(why)
	if serr != nil {
		return st, errors.Join(err, serr)
	}
	listener, lerr := Listen(socket)
	if lerr != nil {
		return st, errors.Join(err, lerr)
	}
	refuse, stop := context.WithCancel(ctx)
	var group errgroup.Group
	group.Go(func() error { return controller.ServeLocal(refuse, server, listener) })
	for errdefs.IsUnavailable(err) && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(openAgain):
			// What is open is the caller's to close. An error of the end says less than that of the store.
			if next, nerr := open(ctx); nerr == nil || ctx.Err() == nil {
				st, err = next, nerr
			}
		}
	}
	stop()
	if ended := group.Wait(); ended != nil && !errors.Is(ended, context.Canceled) {
		slog.WarnContext(ctx, "godwitd could not say what it waits for", "error", ended)
	}
	return st, err
}

// refusing answers each call of a daemon with why.
func refusing(why error) (*ttrpc.Server, error) {
	server, err := ttrpc.NewServer()
	if err != nil {
		return nil, err
	}
	for _, service := range served() {
		desc := &ttrpc.ServiceDesc{Methods: map[string]ttrpc.Method{}, Streams: map[string]ttrpc.Stream{}}
		for j := range service.Methods().Len() {
			method := service.Methods().Get(j)
			name := string(method.Name())
			if method.IsStreamingClient() || method.IsStreamingServer() {
				desc.Streams[name] = ttrpc.Stream{
					StreamingClient: method.IsStreamingClient(), StreamingServer: method.IsStreamingServer(),
					Handler: func(context.Context, ttrpc.StreamServer) (any, error) { return nil, record.ToWire(why) },
				}
				continue
			}
			desc.Methods[name] = func(context.Context, func(any) error) (any, error) { return nil, record.ToWire(why) }
		}
		server.RegisterService(string(service.FullName()), desc)
	}
	return server, nil
}

// served are all services that a daemon may have.
func served() (all []protoreflect.ServiceDescriptor) {
	for _, file := range []protoreflect.FileDescriptor{nodev1.File_node_v1_node_proto, nodev1.File_node_v1_moves_proto,
		nodev1.File_node_v1_store_proto} {
		for i := range file.Services().Len() {
			all = append(all, file.Services().Get(i))
		}
	}
	return all
}
