// Package serial is the console of a VM whose guest runs no agent. A Port stands where
// the agent stands for a container: its output is what the guest writes to its serial
// port, its input what is typed there. The shim opens one for each VM disk.
package serial

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

const (
	// keep is how much output waits for a reader. A serial port does not wait: of what is beyond
	// keep, the oldest is gone, and the guest is never held up.
	keep = 1 << 20
	// retry is the time between two tries at a VMM's socket, which may come with the boot.
	retry = 20 * time.Millisecond
)

// Port is one serial port. It connects again as often as the VMM makes its socket anew.
type Port struct {
	path string
	gone <-chan struct{} // closed when the VMM is

	life   context.Context // ends with Close
	cancel context.CancelFunc
	ended  chan struct{} // closed when nothing is read any more

	typing sync.Mutex // orders writers

	mu      sync.Mutex // guards what follows
	conn    net.Conn   // nil while there is none
	output  []byte
	start   uint64 // offset of output[0]
	eof     bool
	input   uint64        // bytes that the guest's end has taken
	changed chan struct{} // closed, and made anew, when any of it changes
}

// Open connects to the socket at path, as soon as it is there, until gone is closed.
// Output and input count from the offsets given: those that an earlier Port came to.
func Open(path string, gone <-chan struct{}, output, input uint64) *Port {
	p := &Port{path: path, gone: gone, start: output, input: input, ended: make(chan struct{}),
		changed: make(chan struct{})}
	p.life, p.cancel = context.WithCancel(context.Background())
	conn := p.dial() // a VMM whose socket is there already must not find it unread when the guest runs
	go p.follow(conn)
	return p
}

func (p *Port) dial() net.Conn {
	conn, err := new(net.Dialer).DialContext(p.life, "unix", p.path)
	if err != nil {
		return nil
	}
	return conn
}

// follow reads until the VMM is gone.
func (p *Port) follow(conn net.Conn) {
	defer close(p.ended)
	defer p.change(func() { p.eof = true })
	for {
		if conn != nil {
			p.read(conn)
		}
		t := time.NewTimer(retry)
		select {
		case <-p.gone:
			t.Stop()
			return
		case <-p.life.Done():
			t.Stop()
			return
		case <-t.C:
		}
		conn = p.dial()
	}
}

func (p *Port) read(conn net.Conn) {
	defer conn.Close()
	defer context.AfterFunc(p.life, func() { conn.Close() })()
	p.change(func() { p.conn = conn })
	defer p.change(func() { p.conn = nil })
	buf := make([]byte, 32<<10)
	for {
		n, err := conn.Read(buf)
		if n > 0 {
			p.change(func() { p.appendOutput(buf[:n]) })
		}
		if err != nil {
			return
		}
	}
}

// appendOutput adds to the output; p.mu is held.
func (p *Port) appendOutput(data []byte) {
	p.output = append(p.output, data...)
	if over := len(p.output) - keep; over > 0 {
		p.forget(over)
	}
}

// forget drops the oldest n bytes; p.mu is held.
func (p *Port) forget(n int) {
	p.start += uint64(n)
	p.output = append(p.output[:0], p.output[n:]...)
}

func (p *Port) change(fn func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fn()
	close(p.changed)
	p.changed = make(chan struct{})
}

// Close ends the connection; output that was read stays to be had.
func (p *Port) Close() error {
	p.cancel()
	<-p.ended
	return nil
}

// Ended is closed when no more output comes.
func (p *Port) Ended() <-chan struct{} { return p.ended }

// Output answers what there is from offset on, or waits for it. What lies before offset
// is forgotten. at is the offset of data[0]: a larger one than asked where the rest is
// gone. eof says that nothing follows data.
func (p *Port) Output(ctx context.Context, offset uint64, most int) (data []byte, at uint64, eof bool) {
	for {
		p.mu.Lock()
		if offset > p.start {
			p.forget(int(min(offset-p.start, uint64(len(p.output)))))
		}
		at, changed := p.start, p.changed
		data = append([]byte(nil), p.output[:min(most, len(p.output))]...)
		eof = p.eof && len(data) == len(p.output)
		p.mu.Unlock()
		if len(data) > 0 || eof {
			return data, at, eof
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, at, false
		}
	}
}

// Type writes data, which begins at offset of the input, and answers how much of the
// input the guest's end has taken. What it has taken before is not written again.
func (p *Port) Type(ctx context.Context, offset uint64, data []byte) (uint64, error) {
	p.typing.Lock()
	defer p.typing.Unlock()
	for {
		p.mu.Lock()
		conn, changed, taken, eof := p.conn, p.changed, p.input, p.eof
		p.mu.Unlock()
		if taken > offset {
			data = data[min(taken-offset, uint64(len(data))):]
			offset = taken
		}
		switch {
		case len(data) == 0:
			return taken, nil
		case eof:
			return taken, os.ErrClosed
		case conn == nil:
			select {
			case <-changed:
				continue
			case <-ctx.Done():
				return taken, ctx.Err()
			}
		}
		n, err := p.write(ctx, conn, data)
		p.mu.Lock()
		p.input += uint64(n)
		taken = p.input
		p.mu.Unlock()
		if err == nil || n > 0 {
			return taken, nil
		}
		if !errors.Is(err, net.ErrClosed) || ctx.Err() != nil {
			return taken, err
		}
	}
}

func (p *Port) write(ctx context.Context, conn net.Conn, data []byte) (int, error) {
	if err := conn.SetWriteDeadline(time.Time{}); err != nil {
		return 0, err
	}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		_ = conn.SetWriteDeadline(time.Now())
	})
	defer func() {
		if !stop() {
			<-stopped
		}
	}()
	return conn.Write(data)
}
