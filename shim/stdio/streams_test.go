package stdio

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/guest/client"
)

// A client that never opens its end of stdin delays nothing, and CloseIO ends it.
func TestUnopenedStdin(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "in")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	st, err := Open("ns", "vm", URIs{Stdin: fifo}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	p := NewPump("", st, client.Offsets{})
	st.CloseStdin()
	select {
	case _, more := <-p.input:
		if more {
			t.Error("bytes that no client wrote")
		}
	case <-time.After(time.Minute):
		t.Error("stdin has no end")
	}
}

// A logging program that never says it is ready fails the start, and is gone.
func TestLoggerThatIsNeverReady(t *testing.T) {
	defer func(d time.Duration) { loggerBound = d }(loggerBound)
	loggerBound = 100 * time.Millisecond
	dir := t.TempDir()
	logger := filepath.Join(dir, "logger")
	if err := os.WriteFile(logger, []byte("#!/bin/sh\necho $$ >"+dir+"/pid\nexec sleep 1000\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := Open("ns", "vm", URIs{Stdout: "binary://" + logger}, nil)
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), logger) {
		t.Errorf("open: %v", err)
	}
	data, err := os.ReadFile(filepath.Join(dir, "pid"))
	if err != nil || len(data) == 0 {
		return // it was killed before it had begun
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	if !waitFor(func() bool { return syscall.Kill(pid, 0) != nil }) {
		t.Error("the logger runs on")
	}
}

// counted is a talker that counts what it is asked.
type counted struct {
	talker
	reads atomic.Int64
}

func (g *counted) Read(ctx context.Context, r *agentv1.ReadRequest) (*agentv1.ReadResponse, error) {
	g.reads.Add(1)
	return g.talker.Read(ctx, r)
}

// Output for a log file on a full disk waits for space, and is not given up while its
// process runs.
func TestFullLog(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	st := &Streams{stdout: full}
	defer st.Close()
	p := NewPump("", st, client.Offsets{})
	g := &counted{talker: talker{text: []byte("precious"), chunk: 8}}
	p.Start(t.Context(), g)
	if !waitFor(func() bool { return g.reads.Load() > 2 }) {
		t.Error("the output is not tried again")
	}
	if at := p.load(&p.offsets.Stdout); at != 0 {
		t.Errorf("%d bytes are said to be written", at)
	}
	p.mu.Lock()
	given := len(p.done) > 0
	p.mu.Unlock()
	if given {
		t.Error("the output was given up")
	}
	p.End(&agentv1.WaitResponse{Settled: true}) // now nothing waits for it for ever
	if !waitFor(func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.done) > 0
	}) {
		t.Error("the output of a process that has ended holds its exit up")
	}
	p.Stop()
}
