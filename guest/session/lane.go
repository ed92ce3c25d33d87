package session

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
)

// laneWindow bounds what a lane holds in the host's memory.
const laneWindow = 1 << 20

// Lane is the host's end of a bulk stream of the guest, a Source there. The guest sends
// of its own accord what the host wants, and keeps it until the host has it: a lost
// frame is sent again, in whatever session. One caller uses it at a time.
type Lane struct {
	conn *Conn
	key  uint64
	name []byte

	// Guarded by the Conn's lock.
	have  uint64 // confirmed by the caller
	next  uint64 // offset of the next byte to come
	data  []byte // what came and was not taken, up to next
	taken []byte // what the caller has; its array is used again
	told  uint64 // limit last told to the guest
	// toldHave is what the guest was told to be the host's.
	toldHave uint64
	due      bool // there is something to tell
	again    bool // the guest shall go on at next
	end      bool // nothing comes after next
	gone     bool // the guest has no such stream
	over     bool // closed

	ready chan struct{} // something came
}

// Lanes reports whether the guest knows them; it is known once the guest has answered.
func (c *Conn) Lanes() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.features&featureBulk != 0
}

// Lane opens the stream of that name from an offset on.
func (c *Conn) Lane(name []byte, offset uint64) *Lane {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lanes == nil {
		c.lanes = make(map[uint64]*Lane)
	}
	c.laneKey++
	l := &Lane{conn: c, key: c.laneKey, name: name, ready: make(chan struct{}, 1)}
	l.rewind(offset)
	c.lanes[l.key] = l
	c.wake()
	return l
}

// rewind makes the stream begin anew at an offset.
func (l *Lane) rewind(offset uint64) {
	l.have, l.next = offset, offset
	l.data, l.end = l.data[:0], false
	l.due, l.again = true, true
}

// Read confirms all before offset and returns what comes there: up to max bytes, or
// none after wait. The bytes are the caller's until the next Read. at is larger than
// offset where the guest has forgotten what lies between.
func (l *Lane) Read(ctx context.Context, offset uint64, max int, wait time.Duration) (data []byte, at uint64, end bool,
	err error) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		data, at, end, err = l.take(offset, max)
		if len(data) > 0 || end || err != nil {
			return data, at, end, err
		}
		select {
		case <-l.ready:
		case <-timer.C:
			return nil, at, false, nil
		case <-ctx.Done():
			return nil, at, false, ctx.Err()
		}
	}
}

func (l *Lane) take(offset uint64, max int) (data []byte, at uint64, end bool, err error) {
	c := l.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	l.confirm(offset)
	at = l.next - uint64(len(l.data))
	switch {
	case len(l.data) > 0:
		data, at, end = l.deliver(max)
		return data, at, end, nil
	case l.gone || l.over:
		return nil, at, false, fmt.Errorf("read stream: guest has none: %w", errdefs.ErrNotFound)
	case l.end:
		return nil, at, true, nil
	case c.closed || c.err != nil:
		return nil, at, false, ErrReset
	}
	if l.have != l.toldHave { // the stream rests: the guest may forget all of it
		l.due = true
		c.wake()
	}
	return nil, at, false, nil
}

// deliver gives the caller what there is.
func (l *Lane) deliver(max int) (data []byte, at uint64, end bool) {
	at, data = l.next-uint64(len(l.data)), l.data
	if len(data) > max {
		l.data = data[max:]
		return data[:max:max], at, false
	}
	l.data, l.taken = l.taken[:0], data
	return data, at, l.end
}

// confirm moves to offset. What was taken from there on and not confirmed comes again.
func (l *Lane) confirm(offset uint64) {
	at := l.next - uint64(len(l.data))
	offset = max(offset, l.have) // what lies before is gone
	if offset < at || offset > l.next {
		l.rewind(offset)
		l.conn.wake()
		return
	}
	l.data = l.data[offset-at:]
	l.have = offset
	if l.have-l.toldHave >= laneWindow/2 {
		l.due = true
		l.conn.wake()
	}
}

// Close tells the guest that the stream is not wanted any more.
func (l *Lane) Close() {
	l.conn.mu.Lock()
	defer l.conn.mu.Unlock()
	l.over, l.due = true, true
	l.data, l.taken = nil, nil
	l.notify()
	l.conn.wake()
}

func (l *Lane) notify() {
	select {
	case l.ready <- struct{}{}:
	default:
	}
}

// want is the frame that says what is due.
func (l *Lane) want() frame {
	var flags byte
	if l.again {
		flags |= flagAgain
	}
	l.told, l.toldHave = l.have+laneWindow, l.have
	limit := l.told
	if l.over {
		limit = 0
		delete(l.conn.lanes, l.key)
	}
	l.due, l.again = false, false
	payload := append(binary.LittleEndian.AppendUint64(nil, l.key), flags)
	return frame{
		kind: typeWant, version: Version, features: featureBulk, nonce: l.conn.nonce, seq: l.next, recv: l.have, limit: limit,
		payload: append(payload, l.name...),
	}
}

// wanting returns the next want to send, or false.
func (c *Conn) wanting() (frame, bool) {
	if c.err != nil {
		return frame{}, false
	}
	for _, l := range c.lanes {
		if l.due {
			return l.want(), true
		}
	}
	return frame{}, false
}

// askAgain makes every lane go on where it is: the guest is silent after a hello.
func (c *Conn) askAgain() {
	for _, l := range c.lanes {
		l.due, l.again = true, true
	}
}

// bulk takes what came for a lane. It reports a gap.
func (c *Conn) bulk(f frame) (gap bool) {
	l := c.lanes[f.recv]
	if l == nil || l.over || l.again { // what comes before the guest has heard is not what is wanted
		return false
	}
	if f.limit&flagGone != 0 {
		l.gone = true
		l.notify()
		return false
	}
	if f.limit&flagSkip != 0 && f.seq > l.next {
		l.data, l.next, l.have = l.data[:0], f.seq, f.seq
		l.due = true // the limit was for other offsets
		c.wake()
	}
	end := f.seq + uint64(len(f.payload))
	if f.seq > l.next || end < f.seq || end > l.told {
		return f.seq > l.next && end <= l.told
	}
	if end >= l.next {
		l.data = append(l.data, f.payload[l.next-f.seq:]...)
		l.next = end
		l.end = f.limit&flagEnd != 0
	}
	l.notify()
	return false
}
