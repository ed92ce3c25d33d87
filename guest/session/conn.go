package session

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"godwit.dev/godwit/guest/session/queue"

	"github.com/containerd/errdefs"
)

// window bounds what one direction holds in memory on each side.
const window = 1 << 20

// ErrReset ends a session that the two ends cannot go on with: one of them is older
// than what the other has already forgotten. A new session can be opened.
var ErrReset = fmt.Errorf("session reset: %w", errdefs.ErrUnavailable)

// Conn is one end of a session: a net.Conn whose bytes arrive once and in order,
// whatever happens to the channel below. Writes block while the peer does not read.
type Conn struct {
	nonce uint64

	mu      sync.Mutex
	changed *sync.Cond // any field below
	link    *link      // nil while there is no channel

	out      queue.Bytes // bytes from outBase on that the peer has not confirmed
	outBase  uint64
	outSent  uint64 // sent on this link; outBase <= outSent <= outBase+out.Len()
	outLimit uint64 // granted by the peer

	in     queue.Bytes // received, not yet read
	inNext uint64      // next offset expected
	told   uint64      // limit last told to the peer
	ackDue bool        // something arrived since a frame was sent

	features uint16           // of both ends, known after a hello
	lanes    map[uint64]*Lane // of the host
	laneKey  uint64
	sources  sources // of the guest

	err      error // why reads end, after in is empty
	closed   bool
	finished bool   // the peer was told that we closed
	epoch    uint64 // number of the last hello that was obeyed or sent
	deadline [2]time.Time
	timers   [2]*time.Timer
	onClose  func()
}

const (
	forRead = iota
	forWrite
)

func newConn(nonce uint64) *Conn {
	c := &Conn{nonce: nonce, outLimit: window}
	c.changed = sync.NewCond(&c.mu)
	return c
}

// Read implements net.Conn.
func (c *Conn) Read(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		switch {
		case c.closed:
			return 0, net.ErrClosed
		case c.in.Len() > 0:
			n := copy(b, c.in.Held())
			c.in.Drop(n)
			// Tell the peer in large steps; it may be waiting for room.
			if c.granted()-c.told >= window/4 {
				c.ackDue = true
				c.wake()
			}
			return n, nil
		case c.err != nil:
			return 0, c.err
		case c.expired(forRead):
			return 0, os.ErrDeadlineExceeded
		}
		c.changed.Wait()
	}
}

// Write implements net.Conn. The bytes are kept until the peer has them.
func (c *Conn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	written := 0
	for {
		switch {
		case c.closed:
			return written, net.ErrClosed
		case c.err != nil && !errors.Is(c.err, io.EOF):
			return written, c.err
		case c.err != nil:
			return written, io.ErrClosedPipe
		case c.expired(forWrite):
			return written, os.ErrDeadlineExceeded
		}
		n := min(window-c.out.Len(), len(b)-written)
		c.out.Append(b[written : written+n])
		written += n
		if n > 0 {
			c.wake()
		}
		if written == len(b) {
			return written, nil
		}
		c.changed.Wait()
	}
}

// Close implements net.Conn. It tells the peer if the channel allows; bytes that the
// peer does not have by then are lost.
func (c *Conn) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	c.in = queue.Bytes{}
	for _, l := range c.lanes {
		l.notify()
	}
	c.wake()
	onClose := c.onClose
	c.mu.Unlock()
	if onClose != nil {
		onClose()
	}
	return nil
}

// Err returns why the session has ended, or nil.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// end lets reads finish with err once what has arrived is read. It is called with the
// lock held.
func (c *Conn) end(err error) {
	if c.err == nil {
		c.err = err
	}
	c.out = queue.Bytes{}
	c.sources.silenceAll()
	for _, l := range c.lanes {
		l.notify()
	}
	c.wake()
}

// wake tells readers, writers and the link's sender that something changed.
func (c *Conn) wake() {
	c.changed.Broadcast()
	if c.link != nil {
		c.link.poke()
	}
}

// confirm drops what the peer has. It reports whether the peer's view fits ours.
func (c *Conn) confirm(recv, limit uint64) bool {
	if recv > c.outBase+uint64(c.out.Len()) {
		return false
	}
	if recv > c.outBase {
		c.out.Drop(int(recv - c.outBase))
		c.outBase = recv
		c.outSent = max(c.outSent, recv)
		c.wake()
	}
	if limit > c.outLimit {
		c.outLimit = limit
		c.wake()
	}
	return true
}

// rewind sends again from the peer's next expected offset. It reports whether those
// bytes are still here.
func (c *Conn) rewind(recv, limit uint64) bool {
	if recv < c.outBase || !c.confirm(recv, limit) {
		return false
	}
	c.outSent = recv
	return true
}

// accept takes a data frame's new bytes. After a gap, which it reports, the next hello
// brings the ends together.
func (c *Conn) accept(f frame) (gap bool) {
	end := f.seq + uint64(len(f.payload))
	if c.err != nil || end < f.seq || end > c.granted() {
		return false
	}
	c.ackDue = true
	if f.seq > c.inNext || end <= c.inNext {
		c.wake()
		return f.seq > c.inNext
	}
	if !c.closed {
		c.in.Append(f.payload[c.inNext-f.seq:])
	}
	c.inNext = end
	c.wake()
	return false
}

// granted is the first offset that the peer may not send yet.
func (c *Conn) granted() uint64 { return c.inNext - uint64(c.in.Len()) + window }

// take returns the next data frame to send, or false.
func (c *Conn) take() (frame, bool) {
	if c.err != nil {
		return frame{}, false
	}
	from := c.outSent - c.outBase
	room := uint64(0)
	if c.outLimit > c.outSent {
		room = c.outLimit - c.outSent
	}
	n := min(uint64(c.out.Len())-from, room, maxPayload)
	if n == 0 {
		return frame{}, false
	}
	f := c.stamp(typeData)
	f.seq = c.outSent
	f.payload = c.out.Held()[from : from+n]
	c.outSent += n
	return f, true
}

// pending returns the next frame to send on an attached link, or false.
func (c *Conn) pending() (frame, bool) {
	if f, ok := c.take(); ok {
		return f, true
	}
	if c.closed && !c.finished && c.err == nil {
		c.finished = true
		return c.stamp(typeFinish), true
	}
	if c.ackDue {
		return c.stamp(typeAck), true
	}
	return c.wanting()
}

// stamp makes a frame that carries what this end has received.
func (c *Conn) stamp(kind frameType) frame {
	c.ackDue = false
	c.told = c.granted()
	return frame{kind: kind, version: Version, features: c.features, nonce: c.nonce, recv: c.inNext, limit: c.told}
}

// expired reports whether the deadline of a direction has passed.
func (c *Conn) expired(dir int) bool {
	return !c.deadline[dir].IsZero() && !time.Now().Before(c.deadline[dir])
}

func (c *Conn) setDeadline(dir int, t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline[dir] = t
	if c.timers[dir] != nil {
		c.timers[dir].Stop()
	}
	if !t.IsZero() {
		c.timers[dir] = time.AfterFunc(time.Until(t), func() {
			c.mu.Lock() // a reader is before its look at the clock, or waits
			defer c.mu.Unlock()
			c.changed.Broadcast()
		})
	}
	c.changed.Broadcast()
}

// SetDeadline implements net.Conn.
func (c *Conn) SetDeadline(t time.Time) error {
	c.setDeadline(forRead, t)
	c.setDeadline(forWrite, t)
	return nil
}

// SetReadDeadline implements net.Conn.
func (c *Conn) SetReadDeadline(t time.Time) error { c.setDeadline(forRead, t); return nil }

// SetWriteDeadline implements net.Conn.
func (c *Conn) SetWriteDeadline(t time.Time) error { c.setDeadline(forWrite, t); return nil }

// LocalAddr implements net.Conn.
func (c *Conn) LocalAddr() net.Addr { return addr(c.nonce) }

// RemoteAddr implements net.Conn.
func (c *Conn) RemoteAddr() net.Addr { return addr(c.nonce) }

type addr uint64

func (a addr) Network() string { return "session" }
func (a addr) String() string  { return fmt.Sprintf("%016x", uint64(a)) }
