package record

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// one is a listener of one connection.
type one struct {
	conn   chan net.Conn
	closed chan struct{}
}

func (l one) Accept() (net.Conn, error) {
	select {
	case c := <-l.conn:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}
func (l one) Close() error   { return nil }
func (l one) Addr() net.Addr { return &net.UnixAddr{} }

// slow is a godwitd one of whose calls takes its time.
type slow struct {
	nodev1.NodeService
	takes time.Duration
}

func (s slow) VMs(ctx context.Context, _ *nodev1.VMsRequest) (*nodev1.VMsResponse, error) {
	select {
	case <-time.After(s.takes):
		return &nodev1.VMsResponse{Warning: "done"}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// A call on a daemon that takes the connection and answers nothing ends Unavailable, with the
// address and the remedy, after the two bounds.
func TestGuardEndsACallOnASilentDaemon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		go func() { // the queue of a socket
			buf := make([]byte, 4096)
			for {
				if _, err := there.Read(buf); err != nil {
					return
				}
			}
		}()
		client, begun := DefaultGuard.Client(here, "/run/s"), time.Now()
		_, err := nodev1.NewNodeClient(client).VMs(t.Context(), &nodev1.VMsRequest{})
		if err = FromWire(err); !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "/run/s") ||
			!strings.Contains(err.Error(), "LimitNOFILE") {
			t.Errorf("VMs: %v", err)
		}
		if took := time.Since(begun); took != DefaultGuard.Silence+DefaultGuard.Answer {
			t.Errorf("after %s", took)
		}
		_, _ = client.Close(), there.Close()
	})
}

// A call that takes an hour is left alone while the daemon is there, and ends with its caller.
func TestGuardLeavesALongCallAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		server, err := ttrpc.NewServer()
		if err != nil {
			t.Fatal(err)
		}
		nodev1.RegisterNodeService(server, slow{takes: time.Hour})
		l := one{conn: make(chan net.Conn, 1), closed: make(chan struct{})}
		l.conn <- there
		go func() { _ = server.Serve(context.Background(), l) }()
		client := DefaultGuard.Client(here, "/run/s")
		node := nodev1.NewNodeClient(client)
		if resp, err := node.VMs(t.Context(), &nodev1.VMsRequest{}); err != nil || resp.GetWarning() != "done" {
			t.Errorf("VMs: %v, %v", resp, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := node.VMs(ctx, &nodev1.VMsRequest{}); !errdefs.IsDeadlineExceeded(FromWire(err)) &&
			!errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("its caller leaves: %v", err)
		}
		_ = client.Close()
		close(l.closed)
		_ = server.Close()
	})
}
