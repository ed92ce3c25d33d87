package agentd

import (
	"context"
	"io"
	"sync"
	"time"

	"godwit.dev/godwit/guest/queue"
)

// outputSize bounds what is kept of a stream that the host has not confirmed. When it
// is full the process blocks on its pipe.
const outputSize = 1 << 20

// output is one stream of a process towards the host.
type output struct {
	mu      sync.Mutex
	data    queue.Bytes // from base on
	base    uint64      // confirmed by the host
	eof     bool
	dropped bool          // nobody reads any more
	changed chan struct{} // closed and replaced at every change
}

func newOutput() *output { return &output{changed: make(chan struct{})} }

// wake is called with the lock held.
func (o *output) wake() {
	close(o.changed)
	o.changed = make(chan struct{})
}

// fill reads r to its end; it stops reading while the buffer is full.
func (o *output) fill(r io.ReadCloser) {
	defer r.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := r.Read(buf[:min(len(buf), o.room())])
		o.mu.Lock()
		if !o.dropped {
			o.data.Append(buf[:n])
		}
		o.eof = err != nil // a terminal without a process gives EIO
		if n > 0 || o.eof {
			o.wake()
		}
		o.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// room waits until there is some.
func (o *output) room() int {
	for {
		o.mu.Lock()
		n, changed := outputSize-o.data.Len(), o.changed
		o.mu.Unlock()
		if n > 0 {
			return n
		}
		<-changed
	}
}

// end makes the stream end where it is.
func (o *output) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.eof = true
	o.wake()
}

// discard drops what there is and what comes.
func (o *output) discard() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.dropped = true
	o.data = queue.Bytes{}
	o.wake()
}

// acknowledged is the offset that the host has confirmed.
func (o *output) acknowledged() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.base
}

// read drops what lies before offset and returns up to max bytes from there, waiting
// up to wait for the first.
func (o *output) read(ctx context.Context, offset uint64, max int, wait time.Duration) (data []byte, at uint64, eof bool) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		data, at, eof, changed := o.take(offset, max)
		if len(data) > 0 || eof {
			return data, at, eof
		}
		select {
		case <-changed:
		case <-timer.C:
			return nil, at, false
		case <-ctx.Done():
			return nil, at, false
		}
	}
}

func (o *output) take(offset uint64, max int) (data []byte, at uint64, eof bool, changed <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if offset > o.base {
		n := min(offset-o.base, uint64(o.data.Len()))
		o.data.Drop(int(n))
		o.base += n
		o.wake()
	}
	n := min(o.data.Len(), max)
	data = append([]byte(nil), o.data.Held()[:n]...)
	return data, o.base, o.eof && n == o.data.Len(), o.changed
}
