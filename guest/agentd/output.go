package agentd

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"godwit.dev/godwit/guest/session/queue"

	"golang.org/x/sys/unix"
)

const (
	// outputSize bounds what is kept of a stream that the host has not confirmed. When it
	// is full the process blocks on its pipe.
	outputSize = 1 << 20
	// What one read of a pipe takes: more and more while there is as much.
	stepMin = 4 << 10
	stepMax = outputSize / 2
	// ttySize is what the kernel may hold between a process and the master of its terminal.
	ttySize = 128 << 10
)

// output is one stream of a process towards the host, which takes it as a lane (lane.go)
// or by calls of Read.
type output struct {
	poke func() // tells the session that there is more

	mu      sync.Mutex
	data    queue.Ring // from base on
	base    uint64     // confirmed by the host
	step    int
	eof     bool
	dropped bool          // it is not read any more
	changed chan struct{} // closed and replaced at every change
	file    *os.File      // nil where there is nothing to read
	tty     bool
	last    *uint64 // see settle
	lane    lane
}

func newOutput(poke func()) *output {
	return &output{poke: poke, step: stepMin, changed: make(chan struct{})}
}

// wake is called with the lock held.
func (o *output) wake() {
	close(o.changed)
	o.changed = make(chan struct{})
}

// carry reads f to its end; it stops reading while the buffer is full.
func (o *output) carry(f *os.File, tty bool) {
	o.mu.Lock()
	o.file, o.tty = f, tty
	o.mu.Unlock()
	go o.fill(f, tty)
}

func (o *output) fill(f *os.File, tty bool) {
	defer f.Close()
	raw, err := f.SyscallConn()
	for reads := 0; err == nil; reads++ {
		if tty && reads%workersAgain == workersFirst {
			easeWorkers("/proc")
		}
		o.await()
		var end error
		err = raw.Read(func(fd uintptr) bool {
			end = o.readFrom(int(fd), outputSize)
			return !errors.Is(end, unix.EAGAIN)
		})
		o.poke()
		if end != nil {
			break
		}
	}
	o.end()
	o.poke()
}

// readFrom takes what fd has, one read's worth; the buffer holds limit at most. The lock
// is held meanwhile, so that a byte is always in the pipe or in the buffer.
func (o *output) readFrom(fd, limit int) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := min(o.step, limit-o.data.Len())
	if n <= 0 {
		return nil
	}
	first, second := o.data.Space(n)
	n, err := readNow(fd, first, second)
	if errors.Is(err, unix.EINTR) {
		return nil
	}
	if err != nil { // a terminal without a process gives EIO
		return err
	}
	if n == 0 {
		return io.EOF
	}
	if n == o.step {
		o.step = min(2*o.step, stepMax)
	}
	if !o.dropped {
		o.data.Commit(n)
	}
	o.wake()
	return nil
}

// await waits for room for a whole step: each read of a full pipe wakes the process, and
// the switch to it and back costs more than a small read is worth.
func (o *output) await() {
	for {
		o.mu.Lock()
		full, changed := o.data.Len() > outputSize-o.step, o.changed
		o.mu.Unlock()
		if !full {
			return
		}
		<-changed
	}
}

// settle says where the output of a process that has ended does: all that it wrote lies
// before. What others still write to the stream comes later.
func (o *output) settle() uint64 {
	o.sweep()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.last == nil {
		last := o.base + uint64(o.data.Len()) + o.piped()
		o.last = &last
	}
	return *o.last
}

// piped is what lies in the kernel; the lock is held.
func (o *output) piped() (n uint64) {
	if o.file == nil || o.tty || o.eof {
		return 0
	}
	raw, err := o.file.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) { // fails where the stream has ended
		if held, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ); err == nil {
			n = uint64(held)
		}
	})
	return n
}

// sweep takes what a terminal has, more than the buffer's size if need be: it does not
// tell how much that is.
func (o *output) sweep() {
	o.mu.Lock()
	file, needed := o.file, o.tty && !o.eof && o.last == nil
	o.mu.Unlock()
	if !needed {
		return
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		for range ttySize / stepMin {
			if o.readFrom(int(fd), outputSize+ttySize) != nil {
				return
			}
		}
	})
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
	o.data = queue.Ring{}
	o.wake()
}

// confirm drops what the host has; the lock is held.
func (o *output) confirm(offset uint64) {
	if offset <= o.base {
		return
	}
	n := min(offset-o.base, uint64(o.data.Len()))
	o.data.Drop(int(n))
	o.base += n
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
func (o *output) read(ctx context.Context, offset uint64, max int, wait time.Duration) (data []byte, at uint64,
	eof bool) {
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
	o.confirm(offset)
	data = make([]byte, min(o.data.Len(), max))
	n := o.data.Copy(data, 0)
	return data, o.base, o.eof && n == o.data.Len(), o.changed
}
