package shim

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

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/guest/client"
	"godwit.dev/godwit/internal/durable"
)

// An exec whose terminal cannot be opened fails its Start by class, was never started,
// and can be deleted; the task runs on.
func TestExecOnABrokenFifo(t *testing.T) {
	w := newWorld(t).running()
	dir := t.TempDir()
	for name, r := range map[string]*taskapi.ExecProcessRequest{
		"missing":   {Stdout: filepath.Join(dir, "none"), Terminal: true},
		"directory": {Stdout: dir, Terminal: true},
		"stdin":     {Stdin: filepath.Join(dir, "none")},
		"scheme":    {Stdout: "gopher:///x"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := execRequest("broken")
			r.ID, r.ExecID, r.Spec = "vm", "broken", spec.GetSpec()
			_, err := w.service.Exec(ctxNS(t), r)
			w.must("exec", err)
			_, err = w.service.Start(ctxNS(t), &taskapi.StartRequest{ID: "vm", ExecID: "broken"})
			if err == nil || (name == "missing" || name == "stdin") && !errdefs.IsNotFound(errgrpc.ToNative(err)) {
				t.Errorf("start: %v", err)
			}
			_, err = w.service.Delete(ctxNS(t), &taskapi.DeleteRequest{ID: "vm", ExecID: "broken"})
			w.must("delete exec", err)
			state, err := w.service.State(ctxNS(t), &taskapi.StateRequest{ID: "vm"})
			if err != nil || state.GetStatus().String() != "RUNNING" {
				t.Errorf("the task is %v, %v", state.GetStatus(), err)
			}
		})
	}
}

// A client that never opens its end of stdin holds nobody up, and CloseIO ends it.
func TestStdinThatNobodyOpens(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "in")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	st, err := openStreams("ns", "vm", Stdio{Stdin: fifo}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer st.close()
	p := newPumps("", st, client.Offsets{})
	st.closeStdin()
	select {
	case _, more := <-p.input:
		if more {
			t.Error("bytes from nobody")
		}
	case <-time.After(10 * time.Second):
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
	_, err := openStreams("ns", "vm", Stdio{Stdout: "binary://" + logger}, nil)
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
	if !eventually(func() bool { return syscall.Kill(pid, 0) != nil }) {
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
	st := &streams{stdout: full}
	defer st.close()
	p := newPumps("", st, client.Offsets{})
	g := &counted{talker: talker{text: []byte("precious"), chunk: 8}}
	p.start(t.Context(), g)
	if !eventually(func() bool { return g.reads.Load() > 2 }) {
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
	p.end(&agentv1.WaitResponse{Settled: true}) // now nobody waits for it for ever
	if !eventually(func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.done) > 0
	}) {
		t.Error("the output of a process that has ended holds its exit up")
	}
	p.stop()
}

// A journal that cannot be written says what is to be done.
func TestJournalOnABadDisk(t *testing.T) {
	for errno, is := range map[syscall.Errno]func(error) bool{
		syscall.ENOSPC: errdefs.IsResourceExhausted, syscall.EDQUOT: errdefs.IsResourceExhausted, syscall.EROFS: errdefs.IsFailedPrecondition,
	} {
		err := refusedByDisk(&os.PathError{Op: "write", Path: "/x", Err: errno})
		if !is(err) || !strings.Contains(err.Error(), "state_dir") {
			t.Errorf("%v: %v", errno, err)
		}
	}
}

// A full disk under the journal refuses a hibernate by class and leaves the VM as it
// was; with space it goes on.
func TestCaptureOnAFullDisk(t *testing.T) {
	w := newWorld(t).running()
	real := durable.SyncDir
	t.Cleanup(func() { durable.SyncDir = real })
	durable.SyncDir = func(dir string) error { return &os.PathError{Op: "sync", Path: dir, Err: syscall.ENOSPC} }
	_, err := w.capture()
	if !errdefs.IsResourceExhausted(errgrpc.ToNative(err)) || !strings.Contains(err.Error(), "state_dir") {
		t.Errorf("capture: %v", err)
	}
	vm, err := w.service.current()
	if err != nil || !vm.is(Running) || vm.noted().Phase != Own {
		t.Errorf("the VM is %v in %s, %v", vm.state, vm.noted().Phase, err)
	}
	if _, err := w.service.Pause(ctxNS(t), &taskapi.PauseRequest{ID: "vm"}); err != nil {
		t.Errorf("pause needs no disk: %v", err)
	}
	if _, err := w.service.Resume(ctxNS(t), &taskapi.ResumeRequest{ID: "vm"}); err != nil {
		t.Errorf("resume needs no disk: %v", err)
	}
	durable.SyncDir = real
	if _, err := w.capture(); err != nil {
		t.Errorf("capture with space: %v", err)
	}
}
