package stdio

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"
)

// clientBound is how long a client that attached and does not read is waited for, with each
// piece of output: the log is whole, what such a client reads is not.
const clientBound = time.Second

// clientFifo is the fifo by which a client attaches to an output that goes to a log: the output of a
// task that was woken or has moved, or of its execs. The client reads what is written from then on.
// The fifo is open for writing while a client reads.
type clientFifo struct {
	path string

	mu     sync.Mutex
	file   *os.File
	closed bool
}

// newClientFifo makes the fifo at path.
func newClientFifo(path string) (*clientFifo, error) {
	if err := makeFifo(path); err != nil {
		return nil, err
	}
	return &clientFifo{path: path}, nil
}

// makeFifo makes one; a Start that has failed may have left it.
func makeFifo(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		return fmt.Errorf("make fifo %s: %w", path, err)
	}
	return nil
}

// writer is the open fifo where a client reads, else nil; f.mu is held.
func (f *clientFifo) writer() *os.File {
	if f.file == nil {
		f.file, _ = os.OpenFile(f.path, os.O_WRONLY|syscall.O_NONBLOCK, 0) // ENXIO: no client reads
	}
	return f.file
}

// write hands data to a client that reads. A nil fifo has none.
func (f *clientFifo) write(ctx context.Context, data []byte) {
	if f == nil || len(data) == 0 {
		return
	}
	f.mu.Lock()
	var to *os.File
	if !f.closed {
		to = f.writer()
	}
	f.mu.Unlock()
	if to == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, clientBound)
	defer cancel()
	defer interrupt(ctx, to)()
	if _, err := to.Write(data); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file == to { // the reader has gone; another one may come
		f.file = nil
	}
	to.Close()
}

// close is the client's end of file, and ends a write. It may be called more than once.
func (f *clientFifo) close() {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	f.closed = true
	if to := f.writer(); to != nil {
		to.Close()
	}
}

// MakeFifos lets clients attach to the outputs of st by fifos whose names begin with prefix,
// and answers these names.
func (st *Streams) MakeFifos(prefix string) (named URIs, err error) {
	for _, s := range []struct {
		has  bool
		name string
		fifo **clientFifo
		path *string
	}{{st.stdout != nil, "stdout", &st.outFifo, &named.Stdout}, {st.stderr != nil, "stderr", &st.errFifo, &named.Stderr}} {
		if !s.has {
			continue
		}
		if *s.fifo, err = newClientFifo(prefix + "-" + s.name); err != nil {
			return named, err
		}
		*s.path = prefix + "-" + s.name
	}
	return named, nil
}
