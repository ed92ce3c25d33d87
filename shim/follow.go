package shim

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// No client is attached to a task that was woken or has moved, nor to its execs: their
// output goes to a log. A client may attach later all the same: State names fifos, which it
// opens as those of any process, and through which it hears what comes from then on.

// followBound is how long a client that attached and does not read is waited for, with each
// piece of output: the log is whole, what it hears is not.
const followBound = time.Second

// follower is the fifo of one output. Its file is open while somebody reads.
type follower struct {
	path string

	mu   sync.Mutex
	to   *os.File
	over bool
}

// follow makes the fifo.
func follow(path string) (*follower, error) {
	if err := fifo(path); err != nil {
		return nil, err
	}
	return &follower{path: path}, nil
}

// fifo makes one; a Start that has failed may have left it.
func fifo(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		return fmt.Errorf("make fifo %s: %w", path, err)
	}
	return nil
}

// reader is the file where somebody reads, else nil; f.mu is held.
func (f *follower) reader() *os.File {
	if f.to == nil {
		f.to, _ = os.OpenFile(f.path, os.O_WRONLY|syscall.O_NONBLOCK, 0) // ENXIO: nobody reads
	}
	return f.to
}

// write hands data to who reads. A nil follower has nobody.
func (f *follower) write(ctx context.Context, data []byte) {
	if f == nil || len(data) == 0 {
		return
	}
	f.mu.Lock()
	var to *os.File
	if !f.over {
		to = f.reader()
	}
	f.mu.Unlock()
	if to == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, followBound)
	defer cancel()
	defer interrupt(ctx, to)()
	if _, err := to.Write(data); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.to == to { // the reader has gone; another one may come
		f.to = nil
	}
	to.Close()
}

// close is the end of file of who reads, and ends a write. It may be called more than once.
func (f *follower) close() {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over {
		return
	}
	f.over = true
	if to := f.reader(); to != nil {
		to.Close()
	}
}

// offerTo lets clients attach to the outputs of st by fifos whose names begin with prefix,
// and answers these names.
func (st *streams) offerTo(prefix string) (named Stdio, err error) {
	for _, s := range []struct {
		has  bool
		name string
		too  **follower
		path *string
	}{{st.stdout != nil, "stdout", &st.outToo, &named.Stdout}, {st.stderr != nil, "stderr", &st.errToo, &named.Stderr}} {
		if !s.has {
			continue
		}
		if *s.too, err = follow(prefix + "-" + s.name); err != nil {
			return named, err
		}
		*s.path = prefix + "-" + s.name
	}
	return named, nil
}

// offer is offerTo for the task, where its output goes to a log. What fails leaves it
// as it is.
func (s *starting) offer() {
	vm := s.vm
	stdio := s.task.init.stdio
	u, err := url.Parse(stdio.Stdout)
	if err != nil || u.Scheme == "" || u.Scheme == "fifo" || !vm.origin.restored || !vm.spec().HasAgent() {
		return
	}
	named, err := s.streams.offerTo(filepath.Join(vm.noted().RunDir, "task"))
	if err != nil {
		vm.log.Warn("no client can attach to the task", "error", err)
		return
	}
	if named.Terminal = stdio.Terminal; named.Terminal {
		named.Stderr = ""
	}
	vm.mu.Lock()
	defer vm.mu.Unlock()
	s.task.init.shown = named
}
