package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/guest/session"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"github.com/google/go-cmp/cmp"
)

// fake is a guest: the real session and server with a service that counts calls and
// loses its session at call number resetAt.
type fake struct {
	agentv1.AgentService // panics where a test calls what it did not expect

	mu       sync.Mutex
	listener *session.Listener
	calls    int
	resetAt  int
	fail     error
	block    chan struct{} // Wait blocks on it
	open     func(name []byte) session.Source

	stdout []byte // produced so far, all of it
	stdin  []byte // accepted
	closed bool
	files  []*agentv1.File

	signals []uint64 // their names
}

func newFake(t *testing.T) *fake {
	t.Helper()
	f := &fake{block: make(chan struct{})}
	f.reboot(t)
	return f
}

// reboot gives the guest a new listener, which knows no session.
func (f *fake) reboot(t *testing.T) { f.serve(t, f) }

// serve is reboot with a service in f's place.
func (f *fake) serve(t *testing.T, svc agentv1.AgentService) {
	server, err := ttrpc.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	agentv1.RegisterAgentService(server, svc)
	l := session.NewListener()
	l.Open = f.open
	f.mu.Lock()
	old := f.listener
	f.listener = l
	f.mu.Unlock()
	if old != nil {
		old.Close()
	}
	go func() { _ = server.Serve(context.Background(), l) }()
	t.Cleanup(func() { server.Close() })
}

func (f *fake) dial(context.Context, string) (net.Conn, error) {
	host, guest := net.Pipe()
	f.mu.Lock()
	l := f.listener
	f.mu.Unlock()
	go func() { _ = l.Serve(guest) }()
	return host, nil
}

func (f *fake) connect(t *testing.T) *Agent {
	t.Helper()
	a, err := Connect(t.Context(), "", Options{Dial: f.dial})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	return a
}

// call counts; at resetAt the session is lost before the answer is sent.
func (f *fake) call(t context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.calls++; f.calls != f.resetAt {
		return f.fail
	}
	old := f.listener
	server, _ := ttrpc.NewServer()
	agentv1.RegisterAgentService(server, f)
	f.listener = session.NewListener()
	go func() { _ = server.Serve(context.Background(), f.listener) }()
	old.Close()
	<-t.Done()
	return t.Err()
}

func (f *fake) Info(ctx context.Context, _ *agentv1.InfoRequest) (*agentv1.InfoResponse, error) {
	return &agentv1.InfoResponse{BootId: "boot"}, f.call(ctx)
}

func (f *fake) Wait(ctx context.Context, r *agentv1.WaitRequest) (*agentv1.WaitResponse, error) {
	select {
	case <-f.block:
		return &agentv1.WaitResponse{ExitStatus: 7, ExitedAtUnixNano: 5, Oom: true}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (f *fake) Kill(ctx context.Context, r *agentv1.KillRequest) (*agentv1.KillResponse, error) {
	if r.Id == "lives" {
		f.mu.Lock()
		f.signals = append(f.signals, r.Once)
		f.mu.Unlock()
		return &agentv1.KillResponse{}, f.call(ctx)
	}
	return nil, errgrpc.ToGRPC(fmt.Errorf("process %q already finished: %w", "x", errdefs.ErrNotFound))
}

func (f *fake) Read(ctx context.Context, r *agentv1.ReadRequest) (*agentv1.ReadResponse, error) {
	if err := f.call(ctx); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	rest := f.stdout[r.Offset:]
	n := min(1000, len(rest))
	return &agentv1.ReadResponse{Data: rest[:n], Offset: r.Offset, Eof: n == len(rest)}, nil
}

func (f *fake) Write(ctx context.Context, r *agentv1.WriteRequest) (*agentv1.WriteResponse, error) {
	f.mu.Lock()
	fresh := r.Data[uint64(len(f.stdin))-r.Offset:]
	f.stdin = append(f.stdin, fresh[:min(300, len(fresh))]...)
	n := len(f.stdin)
	f.mu.Unlock()
	// Accepted before the answer is lost: the next call must not repeat it.
	return &agentv1.WriteResponse{Offset: uint64(n)}, f.call(ctx)
}

func (f *fake) CloseStdin(ctx context.Context, r *agentv1.CloseStdinRequest) (*agentv1.CloseStdinResponse, error) {
	f.mu.Lock()
	f.closed = int(r.Offset) == len(f.stdin)
	f.mu.Unlock()
	return &agentv1.CloseStdinResponse{}, f.call(ctx)
}

func (f *fake) Setup(_ context.Context, r *agentv1.SetupRequest) (*agentv1.SetupResponse, error) {
	f.files = append(f.files, r.Files...)
	return &agentv1.SetupResponse{}, nil
}

func (f *fake) Copy(_ context.Context, r *agentv1.CopyRequest) (*agentv1.CopyResponse, error) {
	f.files = append(f.files, r.Files...)
	return &agentv1.CopyResponse{}, nil
}

// A signal whose answer is lost is sent again under its name; another signal has another one.
func TestSignalsHaveNames(t *testing.T) {
	f := newFake(t)
	f.resetAt = 2 // the first one is Connect's
	a := f.connect(t)
	for range 2 {
		if _, err := a.Kill(t.Context(), &agentv1.KillRequest{Id: "lives", Signal: 10}); err != nil {
			t.Fatal(err)
		}
	}
	if s := f.signals; len(s) != 3 || s[0] == 0 || s[0] != s[1] || s[1] == s[2] {
		t.Errorf("names %v, want the first one twice and another one", s)
	}
}

// Whatever call the session is lost at, streams go on and nothing is doubled.
func TestStreamsSurviveSessionLossAtEachCall(t *testing.T) {
	want := bytes.Repeat([]byte("0123456789"), 250)
	for at := 1; at <= 12; at++ {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			f := newFake(t)
			f.stdout, f.resetAt = want, at
			a := f.connect(t)
			s := a.NewStreams("p", Offsets{})
			var out bytes.Buffer
			if err := s.CopyStdout(t.Context(), &out); err != nil || !bytes.Equal(out.Bytes(), want) {
				t.Fatalf("%d bytes, %v", out.Len(), err)
			}
			if err := s.CopyStdin(t.Context(), bytes.NewReader(want)); err != nil || !bytes.Equal(f.stdin, want) || !f.closed {
				t.Fatalf("%d bytes, %v", len(f.stdin), err)
			}
			n := uint64(len(want))
			got := s.Offsets()
			if d := cmp.Diff(Offsets{Stdin: n, Stdout: n, StdinDone: true}, got); d != "" {
				t.Fatal(d)
			}
		})
	}
}

func TestWaitGoesOnAfterSessionLoss(t *testing.T) {
	f := newFake(t)
	a := f.connect(t)
	done := make(chan Exit, 1)
	go func() {
		e, err := a.WaitExit(t.Context(), "")
		if err != nil {
			t.Error(err)
		}
		done <- e
	}()
	f.reboot(t)
	close(f.block)
	if e := <-done; e.Status != 7 || !e.OOM || !e.At.Equal(time.Unix(0, 5)) {
		t.Fatalf("%+v", e)
	}
}

func TestErrorsKeepTheirClass(t *testing.T) {
	a := newFake(t).connect(t)
	_, err := a.Kill(t.Context(), &agentv1.KillRequest{Id: "x"})
	if !errdefs.IsNotFound(err) || !strings.Contains(err.Error(), "already finished") {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := a.WaitExit(ctx, ""); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := a.WaitExit(t.Context(), "")
		done <- err
	}()
	a.Close()
	if err := <-done; !errdefs.IsUnavailable(err) {
		t.Fatal(err)
	}
}

func TestGoneEndsCalls(t *testing.T) {
	f, gone := newFake(t), make(chan struct{})
	a, err := Connect(t.Context(), "", Options{Dial: f.dial, Gone: gone})
	if err != nil {
		t.Fatal(err)
	}
	close(gone)
	if _, err := a.WaitExit(t.Context(), ""); !errdefs.IsUnavailable(err) {
		t.Fatal(err)
	}
}

func TestBootErrorShowsConsole(t *testing.T) {
	console := filepath.Join(t.TempDir(), "console")
	if err := os.WriteFile(console, []byte(strings.Repeat("x", 5000)+"Kernel panic\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Connect(t.Context(), "/none/agent.sock", Options{BootTimeout: 30 * time.Millisecond, Console: console})
	var boot *BootError
	if !errors.As(err, &boot) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if !strings.HasSuffix(boot.Tail, "Kernel panic") || !strings.Contains(err.Error(), console) ||
		len(boot.Tail) > consoleTail {
		t.Fatal(err)
	}
}

// errReader gives data and then an error that is not the end.
type errReader struct{ data []byte }

func (r *errReader) Read(b []byte) (int, error) {
	if len(r.data) == 0 {
		return 0, os.ErrClosed
	}
	n := copy(b, r.data)
	r.data = r.data[n:]
	return n, nil
}

// What was taken from the host's stdin and not accepted goes into the snapshot.
func TestPendingStdinIsKept(t *testing.T) {
	f := newFake(t)
	a := f.connect(t)
	s := a.NewStreams("p", Offsets{})
	f.fail = errgrpc.ToGRPC(fmt.Errorf("asleep: %w", errdefs.ErrUnavailable))
	if err := s.CopyStdin(t.Context(), &errReader{data: []byte("hello")}); err == nil {
		t.Fatal("no error")
	}
	data, err := json.Marshal(s.Offsets())
	if err != nil {
		t.Fatal(err)
	}
	var from Offsets
	if err := json.Unmarshal(data, &from); err != nil || string(from.Pending) != "hello" {
		t.Fatalf("%s %v", data, err)
	}
	f.mu.Lock()
	f.fail, f.stdin = nil, nil
	f.mu.Unlock()
	if err := a.NewStreams("p", from).CopyStdin(t.Context(), strings.NewReader(" world")); err != nil ||
		string(f.stdin) != "hello world" {
		t.Fatalf("%q %v", f.stdin, err)
	}
}

func TestSetupSplitsFiles(t *testing.T) {
	f := newFake(t)
	a := f.connect(t)
	big := bytes.Repeat([]byte("0123456789abcdef"), 3*chunk/16+5)
	_, err := a.Setup(t.Context(), &agentv1.SetupRequest{Hostname: "x", Files: []*agentv1.File{
		{Path: "/a", Data: []byte("a")}, {Path: "/big", Mode: 0o640, Data: big}, {Path: "/empty"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string][]byte)
	for _, p := range f.files {
		if p.Append != (p.Offset > 0) || int(p.Offset) != len(got[p.Path]) {
			t.Fatalf("%s at %d", p.Path, p.Offset)
		}
		got[p.Path] = append(got[p.Path], p.Data...)
	}
	if len(got) != 3 || !bytes.Equal(got["/big"], big) {
		t.Fatal(len(got))
	}
}

func TestVSockHandshake(t *testing.T) {
	for answer, ok := range map[string]bool{"OK 1024\nrest": true, "NO\n": false, "": false} {
		path := filepath.Join(t.TempDir(), "v")
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			_, _ = io.ReadFull(c, make([]byte, len("CONNECT 1024\n")))
			_, _ = io.WriteString(c, answer)
		}()
		c, err := VSock(VSockPort)(t.Context(), path)
		if (err == nil) != ok {
			t.Fatalf("%q: %v", answer, err)
		}
		if ok {
			if rest, _ := io.ReadAll(c); string(rest) != "rest" {
				t.Fatalf("%q", rest)
			}
			c.Close()
		}
		l.Close()
	}
}

// A kernel that panicked and does not end its VM is not waited for until timeouts.boot. One that
// only takes long is waited for, and the error names the key.
func TestBootPanic(t *testing.T) {
	console := filepath.Join(t.TempDir(), "console.log")
	silent := func(context.Context, string) (net.Conn, error) {
		host, guest := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, guest) }()
		return host, nil
	}
	if err := os.WriteFile(console, []byte("[    0.1] Kernel panic - not syncing: no memory\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Connect(t.Context(), "", Options{Dial: silent, BootTimeout: time.Hour, Console: console})
	var boot *BootError
	if !errors.As(err, &boot) || !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "no memory") {
		t.Errorf("after a panic: %v", err)
	}
	_, err = Connect(t.Context(), "", Options{Dial: silent, BootTimeout: 10 * time.Millisecond})
	if !errors.As(err, &boot) || !errors.Is(err, context.DeadlineExceeded) ||
		!strings.Contains(err.Error(), "timeouts.boot") {
		t.Errorf("a guest that never answers: %v", err)
	}
}
