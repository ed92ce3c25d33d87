//go:build points

package failpoint

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/ttrpc"
)

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "points")
	if err != nil {
		panic(err)
	}
	os.Setenv("NODE", "n")
	os.Setenv(EnvDir, dir+"/$NODE")
	if err := os.Mkdir(Dir(), 0o700); err != nil {
		panic(err)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

func passed(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(Dir(), LogName))
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for line := range strings.Lines(string(data)) {
		_, point, _ := strings.Cut(strings.TrimSpace(line), " ")
		all = append(all, point)
	}
	return strings.Join(all, " ")
}

// A program is held at the pass that the file names, until the file has gone, and nowhere
// else.
func TestHeld(t *testing.T) {
	armed := filepath.Join(Dir(), "journal.OWN.after")
	if err := os.WriteFile(armed, []byte("2"), 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	write := func() { done <- Record("journal", "OWN", func() error { return nil }) }
	go write()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	go write()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(armed + ".held"); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("it is not held")
		}
	}
	select {
	case <-done:
		t.Fatal("it goes on while it is held")
	case <-time.After(20 * lookInterval):
	}
	if err := os.Remove(armed); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got := passed(t); !strings.HasSuffix(got,
		"journal.OWN.before journal.OWN.after journal.OWN.before journal.OWN.after") {
		t.Errorf("passed %s", got)
	}
}

// Calls are points by service and name; those that ask are none, and what fails has not
// come to its other side.
func TestCalls(t *testing.T) {
	for _, c := range []struct {
		method string
		err    error
	}{{"/godwit.node.v1.Peer/Vote", nil}, {"/godwit.node.v1.Peer/Query", nil},
		{"/containerd.task.v3.Task/Create", errors.New("no")}} {
		_, err := Calls(t.Context(), nil, &ttrpc.UnaryServerInfo{FullMethod: c.method},
			func(context.Context, func(any) error) (any, error) {
				return nil, c.err
			})
		if !errors.Is(err, c.err) {
			t.Errorf("%s: %v", c.method, err)
		}
	}
	if err := Record("record", "COMMITTED", func() error { return os.ErrInvalid }); !errors.Is(err, os.ErrInvalid) {
		t.Error(err)
	}
	if got := passed(t); !strings.HasSuffix(got,
		"Peer.Vote.before Peer.Vote.after Task.Create.before record.COMMITTED.before") {
		t.Errorf("passed %s", got)
	}
}

// A containerd's calls that ask are points where a file says so. Those of others are none.
func TestAsks(t *testing.T) {
	file := filepath.Join(Dir(), AsksName)
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	call := func(method string) {
		_, err := Calls(t.Context(), nil, &ttrpc.UnaryServerInfo{FullMethod: method},
			func(context.Context, func(any) error) (any, error) { return nil, nil })
		if err != nil {
			t.Error(err)
		}
	}
	call("/containerd.task.v3.Task/Connect")
	call("/godwit.node.v1.Peer/Query")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	call("/containerd.task.v3.Task/State")
	if got := passed(t); !strings.HasSuffix(got, "Task.Connect.before Task.Connect.after") {
		t.Errorf("passed %s", got)
	}
}
