package qmp_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/vmm/qemu/qmp"
	"godwit.dev/godwit/vmm/qemu/qmptest"
)

// serve runs a fake QEMU and returns its socket.
func serve(t *testing.T, s *qmptest.Server) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "qmp.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go s.Serve(l)
	return path
}

func dial(t *testing.T, s *qmptest.Server, onEvent func(qmp.Event)) *qmp.Client {
	t.Helper()
	c, err := qmp.Dial(t.Context(), serve(t, s), onEvent)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestExecuteDecodesAnswer(t *testing.T) {
	c := dial(t, &qmptest.Server{Status: "prelaunch"}, nil)
	var got struct{ Status string }
	if err := c.Execute(t.Context(), "query-status", nil, &got); err != nil || got.Status != "prelaunch" {
		t.Errorf("query-status: got %q, %v, want prelaunch", got.Status, err)
	}
}

func TestErrorClasses(t *testing.T) {
	c := dial(t, &qmptest.Server{}, nil)
	tests := []struct {
		command string
		args    map[string]any
		class   func(error) bool
	}{
		{"no-such-command", nil, errdefs.IsNotImplemented},
		{"device_del", map[string]any{"id": "none"}, errdefs.IsNotFound},
		{"closefd", map[string]any{"fdname": "none"}, errdefs.IsFailedPrecondition},
	}
	for _, tt := range tests {
		err := c.Execute(t.Context(), tt.command, tt.args, nil)
		var refused *qmp.Error
		if !errors.As(err, &refused) || refused.Command != tt.command || !tt.class(err) {
			t.Errorf("%s: got %v (%T)", tt.command, err, err)
		}
	}
}

func TestEventsAreSeenInOrder(t *testing.T) {
	var mu sync.Mutex
	var got []string
	c := dial(t, &qmptest.Server{Status: "prelaunch"}, func(e qmp.Event) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, e.Name)
	})
	for _, command := range []string{"cont", "stop", "cont"} {
		if err := c.Execute(t.Context(), command, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if fmt.Sprint(got) != "[RESUME STOP RESUME]" {
		t.Errorf("events: got %v", got)
	}
}

func TestSendFile(t *testing.T) {
	c := dial(t, &qmptest.Server{Status: "paused"}, nil)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := c.SendFile(t.Context(), "f", w); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := c.Execute(t.Context(), "migrate", map[string]any{"uri": "fd:f"}, nil); err != nil {
		t.Fatal(err)
	}
	if data, err := io.ReadAll(r); err != nil || string(data) != qmptest.State {
		t.Errorf("through the file: got %q, %v", data, err)
	}
}

// late is a context whose time is over, which it does not say yet.
type late struct{ context.Context }

func (late) Deadline() (time.Time, bool) { return time.Unix(1, 0), true }

// TestTimeIsOverBeforeTheWrite: a command of which nothing was sent costs no more than itself.
func TestTimeIsOverBeforeTheWrite(t *testing.T) {
	c := dial(t, &qmptest.Server{Status: "running"}, nil)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if err := c.Execute(late{t.Context()}, "query-status", nil, nil); !errdefs.IsDeadlineExceeded(err) {
		t.Errorf("execute: got %v, want DeadlineExceeded", err)
	}
	if err := c.SendFile(late{t.Context()}, "f", w); !errdefs.IsDeadlineExceeded(err) {
		t.Errorf("send file: got %v, want DeadlineExceeded", err)
	}
	if err := c.Execute(t.Context(), "query-status", nil, nil); err != nil {
		t.Errorf("the next command: %v", err)
	}
}

func TestConcurrentCalls(t *testing.T) {
	c := dial(t, &qmptest.Server{Status: "running"}, nil)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			var got struct{ Status string }
			if err := c.Execute(t.Context(), "query-status", nil, &got); err != nil || got.Status != "running" {
				t.Errorf("query-status: got %q, %v", got.Status, err)
			}
		})
	}
	wg.Wait()
}

// TestCallGoesWrong lets greeting, negotiation and a first command go wrong.
func TestCallGoesWrong(t *testing.T) {
	for failAt, where := range []string{"greeting", "capabilities", "command"} {
		for how, want := range map[string]func(error) bool{
			qmptest.Hang:    errdefs.IsDeadlineExceeded,
			qmptest.Close:   errdefs.IsUnavailable,
			qmptest.Garbage: errdefs.IsUnavailable,
			qmptest.Refuse:  errdefs.IsFailedPrecondition,
		} {
			if how == qmptest.Refuse && failAt == 0 {
				continue // a greeting refuses nothing
			}
			t.Run(where+" "+how, func(t *testing.T) {
				path := serve(t, &qmptest.Server{FailAt: failAt, How: how})
				ctx := t.Context()
				if how == qmptest.Hang { // of the others the answer counts, however late it comes
					short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
					defer cancel()
					ctx = short
				}
				c, err := qmp.Dial(ctx, path, nil)
				if failAt == 2 && err == nil {
					defer c.Close()
					err = c.Execute(ctx, "query-status", nil, nil)
				}
				if !want(err) {
					t.Errorf("got %v", err)
				}
			})
		}
	}
}

// TestOneClientAtATime: the second one waits as long as it is allowed to.
func TestOneClientAtATime(t *testing.T) {
	path := serve(t, &qmptest.Server{Status: "running"})
	first, err := qmp.Dial(t.Context(), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := qmp.Dial(short, path, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("second client: got %v, want DeadlineExceeded", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := qmp.Dial(t.Context(), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(second.Close(), second.Close()); err != nil {
		t.Errorf("close twice: %v", err)
	}
	if err := second.Execute(t.Context(), "query-status", nil, nil); !errdefs.IsUnavailable(err) {
		t.Errorf("execute after close: got %v, want Unavailable", err)
	}
}
