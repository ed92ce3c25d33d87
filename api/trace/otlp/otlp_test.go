package otlp_test

import (
	"context"
	"encoding/hex"
	"errors"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/types/known/emptypb"

	"godwit.dev/godwit/api/trace"
	"godwit.dev/godwit/api/trace/otlp"
	"godwit.dev/godwit/api/trace/otlp/otlptest"
)

func collector(t *testing.T) (*otlptest.Collector, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := otlptest.Serve(l)
	t.Cleanup(func() { _ = c.Close() })
	return c, "http://" + l.Addr().String()
}

// serve answers calls of one method by do, with that interceptor, and answers the client.
func serve(t *testing.T, interceptor ttrpc.UnaryServerInterceptor, do func(context.Context) error) *ttrpc.Client {
	t.Helper()
	srv, err := ttrpc.NewServer(ttrpc.WithChainUnaryServerInterceptor(interceptor))
	if err != nil {
		t.Fatal(err)
	}
	srv.Register("godwit.test.v1.Peer",
		map[string]ttrpc.Method{"Capture": func(ctx context.Context, _ func(any) error) (any, error) {
			return &emptypb.Empty{}, do(ctx)
		}})
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = srv.Serve(context.Background(), l) }()
	conn, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	client := ttrpc.NewClient(conn)
	t.Cleanup(func() { _ = client.Close(); _ = srv.Close() })
	return client
}

func call(ctx context.Context, c *ttrpc.Client) error {
	return c.Call(ctx, "godwit.test.v1.Peer", "Capture", &emptypb.Empty{}, &emptypb.Empty{})
}

// A step of an operation asks a daemon, which asks a shim: one trace, whose spans come from
// three programs, one of which exports nothing itself.
func TestThroughThePrograms(t *testing.T) {
	collector, endpoint := collector(t)
	open := func(program string) *otlp.Exporter {
		e, err := otlp.New(t.Context(), endpoint, program, "n1")
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	controller, node, left := open("controller"), open("node"), trace.InState(t.TempDir())
	shim := serve(t, trace.Last(left), func(ctx context.Context) error {
		if _, ok := trace.From(ctx); ok {
			t.Error("what the shim asks carries the span")
		}
		return nil
	})
	failed := errors.New("no room")
	daemon := serve(t, trace.Server(node), func(ctx context.Context) error {
		if err := call(ctx, shim); err != nil {
			t.Error(err)
		}
		return failed
	})

	begun := time.Now()
	ctx, end := controller.Begin(trace.With(t.Context(), trace.Of("move-1")), "transfer", "vm", "default/web")
	err := call(ctx, daemon)
	end(err)
	controller.Whole("move-1", "move", begun, time.Now(), "it failed", "vm", "default/web")
	for range 2 {
		spans, err := left.Take()
		if err != nil {
			t.Fatal(err)
		}
		node.Add("shim", spans)
	}
	for _, e := range []*otlp.Exporter{controller, node} {
		if err := e.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	id := trace.Of("move-1").Trace
	tree, err := collector.Tree(hex.EncodeToString(id[:]))
	want := "controller: move\n  controller: transfer\n    node: godwit.test.v1.Peer/Capture\n      shim: " +
		"godwit.test.v1.Peer/Capture\n"
	if err != nil || tree != want {
		t.Errorf("%v\n%s", err, tree)
	}
	for _, s := range collector.Trace(hex.EncodeToString(id[:])) {
		if s.End.Before(s.Start) || s.Start.Before(begun) || s.Host != "n1" || s.Program != "shim" && s.Error == "" ||
			s.Program == "controller" && s.Attributes["godwit.vm"] != "default/web" {
			t.Errorf("%+v", s)
		}
	}
}

// What belongs to no operation is not recorded, and sends nothing. A collector that is away
// delays no caller.
func TestOff(t *testing.T) {
	collector, endpoint := collector(t)
	e, err := otlp.New(t.Context(), endpoint, "node", "n1")
	if err != nil {
		t.Fatal(err)
	}
	left := trace.InState(t.TempDir())
	for _, r := range []trace.Recorder{e, left, trace.Off{}} {
		_, end := r.Begin(t.Context(), "nothing")
		end(nil)
	}
	ctx := trace.With(t.Context(), trace.Of("x"))
	if got, end := (trace.Off{}).Begin(ctx, "nothing"); got != ctx {
		end(nil)
		t.Error("it is off, and makes something")
	}
	if err := e.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if spans, err := left.Take(); err != nil || len(spans) > 0 {
			t.Errorf("%v, %v", spans, err)
		}
	}
	if n := collector.Requests(); n != 0 {
		t.Errorf("%d requests", n)
	}
	_ = collector.Close()
	e, err = otlp.New(t.Context(), endpoint, "node", "n1")
	if err != nil {
		t.Fatal(err)
	}
	_, end := e.Begin(ctx, "unheard")
	end(nil)
	bound, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	begun := time.Now()
	_ = e.Close(bound)
	if took := time.Since(begun); took > 30*time.Second {
		t.Errorf("Close took %v, 100ms were allowed", took)
	}
}

// Only a context of this version that wants a record is one.
func TestParse(t *testing.T) {
	c := trace.Of("x")
	if got, ok := trace.Parse(c.String()); !ok || got != c {
		t.Errorf("%v, %v", got, ok)
	}
	for _, text := range []string{
		"", "00", c.String() + "-", "01" + c.String()[2:], c.String()[:len(c.String())-1] + "0", "00-" + c.String()[3:],
		"00-00000000000000000000000000000000-0000000000000001-01", "00-zz" + c.String()[5:], "00-" + c.String()[4:],
	} {
		if got, ok := trace.Parse(text); ok && text != c.String() {
			t.Errorf("%q is %v", text, got)
		}
	}
}
