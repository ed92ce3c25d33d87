package shim

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"golang.org/x/sys/unix"
)

// aSink is a fifo, as the shim has it.
func aSink(t *testing.T) (path string, sink *os.File) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "out")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	sink, err := openSink(path)
	if err != nil {
		t.Fatal(err)
	}
	return path, sink
}

// hasWriter reports whether somebody still has the fifo open for writing.
func hasWriter(t *testing.T, path string) bool {
	t.Helper()
	r, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(r)
	_, err = unix.Read(r, make([]byte, 1))
	return errors.Is(err, unix.EAGAIN)
}

// A client that opens its end when all is over finds what was written, and its end; one that is
// there is told at once; one that never comes is not waited for beyond the bound.
func TestFarewell(t *testing.T) {
	path, sink := aSink(t)
	if _, err := sink.WriteString("late"); err != nil {
		t.Fatal(err)
	}
	closeMet(sink)
	closeMet(sink) // of what was closed already: nothing
	time.Sleep(5 * lingerInterval)
	if got, err := os.ReadFile(path); err != nil || string(got) != "late" {
		t.Errorf("a late client reads %q, %v", got, err)
	}

	path, sink = aSink(t)
	client, err := os.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	closeMet(sink)
	if hasWriter(t, path) {
		t.Error("a client that is there is not told of the end")
	}

	defer func(b time.Duration) { lingerBound = b }(lingerBound)
	lingerBound = 10 * lingerInterval
	path, sink = aSink(t)
	closeMet(sink)
	time.Sleep(2 * lingerBound)
	if hasWriter(t, path) {
		t.Error("a client that does not come is waited for")
	}

	r, w, err := os.Pipe() // a logger's: it is there, or dead
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	if closeMet(w); w.Close() == nil {
		t.Error("a pipe without a reader is not closed")
	}
}

// A client whose fifos are opened after its exec has ended gets the output, and its end.
func TestExecIsReadWhenItIsOver(t *testing.T) {
	w := newWorld(t).running()
	w.agent.text = bytes.Repeat([]byte{'x'}, 1<<10)
	dir := t.TempDir()
	r := execRequest("quick")
	r.Stdout, r.Stderr = filepath.Join(dir, "out"), filepath.Join(dir, "err")
	w.must("make fifo", syscall.Mkfifo(r.Stdout, 0o600))
	w.must("make fifo", syscall.Mkfifo(r.Stderr, 0o600))
	_, err := w.service.Exec(ctxNS(t), r)
	w.must("exec", err)
	_, err = w.service.Start(ctxNS(t), &taskapi.StartRequest{ID: "vm", ExecID: "quick"})
	w.must("start", err)
	vm, err := w.service.current()
	w.must("find VM", err)
	vm.mu.Lock()
	p := vm.owner.execs["quick"]
	vm.mu.Unlock()
	w.agent.exit(p.guest) <- 0
	if got := w.wait("quick"); got != 0 {
		t.Errorf("exit status %d", got)
	}
	time.Sleep(5 * lingerInterval)
	for path, want := range map[string]int{r.Stdout: 1 << 10, r.Stderr: 1 << 10} {
		client, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // so that a lost end fails the test, and does not hang it
		w.must("open fifo", err)
		defer client.Close()
		w.must("set deadline", client.SetReadDeadline(time.Now().Add(10*time.Second)))
		got, err := io.ReadAll(client)
		if err != nil || len(got) != want {
			t.Errorf("%s: %d bytes, %v, want %d", filepath.Base(path), len(got), err, want)
		}
	}
}
