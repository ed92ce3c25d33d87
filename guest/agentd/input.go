package agentd

import (
	"context"
	"fmt"
	"io"
	"sync"

	"github.com/containerd/errdefs"
)

// inputSize bounds what is kept of stdin that the process has not read.
const inputSize = 256 << 10

// input is the stdin of a process.
type input struct {
	mu       sync.Mutex
	data     []byte // accepted, not yet written to the process
	accepted uint64
	closeAt  *uint64 // stdin ends at this offset
	closed   bool    // the process takes no more
	changed  chan struct{}
}

func newInput() *input { return &input{changed: make(chan struct{})} }

func (i *input) wake() {
	close(i.changed)
	i.changed = make(chan struct{})
}

// pump writes to w until stdin ends or the process has closed it. A terminal's writer
// stays open: its end is that of the process.
func (i *input) pump(w io.WriteCloser, terminal bool) {
	if !terminal {
		defer w.Close()
	}
	for {
		data, more := i.next()
		if !more {
			return
		}
		if _, err := w.Write(data); err != nil {
			i.stop()
			return
		}
	}
}

// next waits for bytes; false when there will be none.
func (i *input) next() ([]byte, bool) {
	for {
		i.mu.Lock()
		if len(i.data) > 0 {
			data := i.data
			i.data = nil
			i.wake()
			i.mu.Unlock()
			return data, true
		}
		over := i.closed || i.closeAt != nil && i.accepted >= *i.closeAt
		changed := i.changed
		i.mu.Unlock()
		if over {
			return nil, false
		}
		<-changed
	}
}

// stop says that the process takes no more.
func (i *input) stop() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.closed = true
	i.data = nil
	i.wake()
}

// write accepts as much as fits, at least a byte: it waits for room.
func (i *input) write(ctx context.Context, offset uint64, data []byte) (accepted uint64, closed bool, err error) {
	for {
		i.mu.Lock()
		if offset > i.accepted {
			at := i.accepted
			i.mu.Unlock()
			return at, false, fmt.Errorf("stdin at %d: guest has %d bytes: %w", offset, at, errdefs.ErrOutOfRange)
		}
		fresh := data[min(i.accepted-offset, uint64(len(data))):]
		n := min(len(fresh), inputSize-len(i.data))
		if n > 0 && !i.closed {
			i.data = append(i.data, fresh[:n]...)
			i.accepted += uint64(n)
			i.wake()
		}
		accepted, closed, changed := i.accepted, i.closed, i.changed
		i.mu.Unlock()
		if n > 0 || len(fresh) == 0 || closed {
			return accepted, closed, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return accepted, closed, ctx.Err()
		}
	}
}

// closeAfter ends stdin at an offset.
func (i *input) closeAfter(offset uint64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closeAt == nil {
		i.closeAt = &offset
		i.wake()
	}
}

func (i *input) offset() uint64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.accepted
}
