package serve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"

	"godwit.dev/godwit/api/agent/lean"
	agentv1 "godwit.dev/godwit/api/agent/v1"
)

// guest answers a few calls; the others panic, being nil.
type guest struct {
	lean.AgentService
	err     error
	waiting chan struct{}
	ended   chan error // of Wait's context
}

func (g *guest) Info(context.Context, *lean.InfoRequest) (*lean.InfoResponse, error) {
	return &lean.InfoResponse{BootId: "b", UptimeMs: 7}, g.err
}

func (g *guest) Wait(ctx context.Context, _ *lean.WaitRequest) (*lean.WaitResponse, error) {
	close(g.waiting)
	<-ctx.Done()
	g.ended <- ctx.Err()
	return nil, ctx.Err()
}

func (g *guest) Read(_ context.Context, r *lean.ReadRequest) (*lean.ReadResponse, error) {
	return &lean.ReadResponse{Data: make([]byte, r.Max), Offset: r.Offset}, nil
}

func (g *guest) Write(_ context.Context, r *lean.WriteRequest) (*lean.WriteResponse, error) {
	return &lean.WriteResponse{Offset: r.Offset + uint64(len(r.Data))}, nil
}

// dial serves g and answers ttrpc's own client of it.
func dial(t *testing.T, g *guest) (agentv1.AgentService, *ttrpc.Client) {
	t.Helper()
	l, err := net.Listen("unix", t.TempDir()+"/s")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{Service: lean.Service, Handlers: lean.Handlers(g), Log: t.Logf}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Serve(context.Background(), l); !errors.Is(err, net.ErrClosed) {
			t.Errorf("serve: %v", err)
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	c, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	client := ttrpc.NewClient(c)
	t.Cleanup(func() { client.Close() })
	return agentv1.NewAgentClient(client), client
}

// ttrpc's client is answered, in messages as large as ttrpc takes; a larger one is
// refused and the connection goes on.
func TestCalls(t *testing.T) {
	agent, _ := dial(t, &guest{})
	ctx := t.Context()
	info, err := agent.Info(ctx, &agentv1.InfoRequest{})
	if err != nil || info.BootId != "b" || info.UptimeMs != 7 {
		t.Fatalf("info: %v, %v", info, err)
	}
	const large = 4<<20 - 200
	if w, err := agent.Write(ctx, &agentv1.WriteRequest{Offset: 1, Data: make([]byte, large)}); err != nil ||
		w.Offset != large+1 {
		t.Errorf("large request: %v, %v", w, err)
	}
	if r, err := agent.Read(ctx, &agentv1.ReadRequest{Offset: 3, Max: large}); err != nil || len(r.Data) != large ||
		r.Offset != 3 {
		t.Errorf("large answer: %v", err)
	}
	if _, err := agent.Read(ctx, &agentv1.ReadRequest{Max: 4 << 20}); !errdefs.IsResourceExhausted(errgrpc.ToNative(err)) {
		t.Errorf("an answer that is too large: %v", err)
	}
	if _, err := agent.Info(ctx, &agentv1.InfoRequest{}); err != nil {
		t.Errorf("after that: %v", err)
	}
}

// The host gets the class and the text of an error, of a panic and of a call that is
// none of ours.
func TestErrors(t *testing.T) {
	for class := range codes {
		if errors.Is(class, errdefs.ErrConflict) || errors.Is(class, errdefs.ErrNotModified) {
			continue // the wire has one code for these and FailedPrecondition
		}
		agent, _ := dial(t, &guest{err: fmt.Errorf("do it: %w", class)})
		_, err := agent.Info(t.Context(), &agentv1.InfoRequest{})
		if err = errgrpc.ToNative(err); !errors.Is(err, class) || !strings.Contains(err.Error(), "do it") {
			t.Errorf("%v: the host got %v", class, err)
		}
	}
	agent, client := dial(t, &guest{err: errors.New("of no class")})
	if _, err := agent.Info(t.Context(), &agentv1.InfoRequest{}); !errdefs.IsUnknown(errgrpc.ToNative(err)) {
		t.Errorf("an error of no class: %v", err)
	}
	if _, err := agent.Sync(t.Context(), &agentv1.SyncRequest{}); !errdefs.IsInternal(errgrpc.ToNative(err)) {
		t.Errorf("panic: %v", err)
	}
	for _, call := range [][2]string{{lean.Service, "Nothing"}, {"other.Service", "Info"}} {
		err := client.Call(t.Context(), call[0], call[1], &agentv1.InfoRequest{}, &agentv1.InfoResponse{})
		if !errdefs.IsNotImplemented(errgrpc.ToNative(err)) {
			t.Errorf("%v: %v", call, err)
		}
	}
}

// An error may quote any bytes, and many: its class and both ends of its text arrive.
func TestErrorOfAnyText(t *testing.T) {
	for _, quoted := range []string{"\xff\x80", strings.Repeat("x", 8<<20)} {
		agent, _ := dial(t, &guest{err: fmt.Errorf("open %s: %w", quoted, errdefs.ErrNotFound)})
		_, err := agent.Info(t.Context(), &agentv1.InfoRequest{})
		if err = errgrpc.ToNative(err); !errdefs.IsNotFound(err) || !strings.HasPrefix(err.Error(), "open ") ||
			!strings.HasSuffix(err.Error(), "not found") || len(err.Error()) > 32<<10 {
			t.Errorf("%d bytes quoted: the host got %.100v", len(quoted), err)
		}
	}
}

// A call that waits keeps no other from being answered; its context ends with the time
// that the host gave it, or with the connection.
func TestWaiting(t *testing.T) {
	t.Run("timeout", func(t *testing.T) {
		g := &guest{waiting: make(chan struct{}), ended: make(chan error, 1)}
		agent, _ := dial(t, g)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second) // the call must have begun by then
		defer cancel()
		if _, err := agent.Wait(ctx, &agentv1.WaitRequest{}); err == nil {
			t.Error("it returned")
		}
		if err := <-g.ended; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("in the guest: %v", err)
		}
	})
	t.Run("host gone", func(t *testing.T) {
		g := &guest{waiting: make(chan struct{}), ended: make(chan error, 1)}
		agent, client := dial(t, g)
		go func() { _, _ = agent.Wait(context.Background(), &agentv1.WaitRequest{}) }()
		<-g.waiting
		if _, err := agent.Info(t.Context(), &agentv1.InfoRequest{}); err != nil {
			t.Errorf("another call: %v", err)
		}
		client.Close()
		if err := <-g.ended; !errors.Is(err, context.Canceled) {
			t.Errorf("in the guest: %v", err)
		}
	})
}
