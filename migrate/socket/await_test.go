package socket

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/types/known/emptypb"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
)

// While the store of the records is away, a daemon that starts answers each call with what it
// waits for. It goes on once the store is there, and ends when it is told to.
func TestWaitsForTheStore(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "godwitd.sock")
	away := fmt.Errorf("etcd at x (controller.etcd.endpoints): %w", errdefs.ErrUnavailable)
	ask := func() {
		client := record.Local(socket)
		defer client.Close()
		if _, err := client.List(t.Context(), &nodev1.ListRequest{}); !errdefs.IsUnavailable(err) ||
			!strings.Contains(err.Error(), "controller.etcd.endpoints") {
			t.Errorf("got %v", err)
		}
	}
	opened := 0
	got, err := Await(t.Context(), socket, func(context.Context) (string, error) {
		if opened++; opened == 1 {
			return "", away
		}
		ask()
		return "store", nil
	})
	if got != "store" || err != nil || opened != 2 {
		t.Errorf("%q, %v, opened %d times", got, err, opened)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err = Await(ctx, socket, func(context.Context) (string, error) { cancel(); return "", away })
	if !errdefs.IsUnavailable(err) {
		t.Errorf("told to end: %v", err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	opened = 0
	got, err = Await(ctx, socket, func(context.Context) (string, error) {
		if opened++; opened == 1 {
			return "", away
		}
		cancel()
		return "store", nil
	})
	if got != "store" || err != nil { // else it is never closed
		t.Errorf("told to end as the store opens: %q, %v", got, err)
	}
	if _, err = Await(t.Context(), socket, func(context.Context) (string, error) {
		return "", errdefs.ErrNotImplemented
	}); !errors.Is(err, errdefs.ErrNotImplemented) {
		t.Errorf("a store of another version: %v", err)
	}
}

// Each call of each service of a daemon is refused with the reason, also one that streams.
func TestRefusesEachCall(t *testing.T) {
	server, err := refusing(fmt.Errorf("away: %w", errdefs.ErrUnavailable))
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(t.Context(), l) }()
	t.Cleanup(func() { _ = server.Close() })
	conn, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	client := ttrpc.NewClient(conn)
	defer client.Close()
	calls := 0
	for _, service := range served() {
		for i := range service.Methods().Len() {
			m := service.Methods().Get(i)
			calls++
			if m.IsStreamingServer() || m.IsStreamingClient() {
				stream, serr := client.NewStream(t.Context(), &ttrpc.StreamDesc{StreamingServer: true}, string(service.FullName()),
					string(m.Name()), &emptypb.Empty{})
				if serr != nil {
					t.Fatal(serr)
				}
				err = stream.RecvMsg(&emptypb.Empty{})
			} else {
				err = client.Call(t.Context(), string(service.FullName()), string(m.Name()), &ttrpc.Request{}, &ttrpc.Response{})
			}
			if !errdefs.IsUnavailable(record.FromWire(err)) {
				t.Errorf("%s: %v", m.FullName(), err)
			}
		}
	}
	if calls < 40 {
		t.Errorf("%d calls", calls)
	}
}
