package stdio

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// aSink is a fifo, as the shim has it.
func aSink(t *testing.T) (path string, sink *os.File) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "out")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	sink, err := openFifoOrFile(path)
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

// isOpen reports whether this process has the fifo open.
func isOpen(t *testing.T, path string) bool {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(fds, func(fd os.DirEntry) bool {
		at, err := os.Readlink("/proc/self/fd/" + fd.Name())
		return err == nil && at == path
	})
}

// A client that opens the stream when all is over finds what was written, and its end. A client
// that is there is told of the end at once. A client that never comes is not waited for beyond
// the bound.
func TestCloseOnceOpened(t *testing.T) {
	path, sink := aSink(t)
	if _, err := sink.WriteString("late"); err != nil {
		t.Fatal(err)
	}
	closeOnceOpened(sink)
	closeOnceOpened(sink) // of what was closed already: nothing
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
	closeOnceOpened(sink)
	if hasWriter(t, path) {
		t.Error("a client that is there is not told of the end")
	}

	defer func(b time.Duration) { lingerBound = b }(lingerBound)
	lingerBound = 10 * lingerInterval
	path, sink = aSink(t)
	closeOnceOpened(sink)
	for begun := time.Now(); isOpen(t, path); time.Sleep(lingerInterval) { // to look as a client does would be to come
		if time.Since(begun) > time.Minute {
			t.Fatal("a client that does not come is waited for")
		}
	}

	r, w, err := os.Pipe() // a logger's: it is there, or dead
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	if closeOnceOpened(w); w.Close() == nil {
		t.Error("a pipe without a reader is not closed")
	}
}
