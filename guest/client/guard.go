package client

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"sync"

	"github.com/containerd/errdefs"
)

// A message of ttrpc has a header of ten bytes: length and stream, big-endian, type
// and flags.
const (
	messageHeader = 10
	typeResponse  = 2
)

// What an answer may have: a large one is decoded into many times its size. Only
// output may be long, and lists of processes, whose entries are counted first.
const (
	maxAnswer = 256 << 10
	maxOutput = 1<<20 + 4<<10
)

// longAnswers are the methods that may have a long answer, as the first bytes of a request have them.
var longAnswers = []struct {
	method []byte
	limit  uint32
}{
	{[]byte("\x12\x04Read"), maxOutput},
	{[]byte("\x12\x08Restored"), maxList},
	{[]byte("\x12\x09Processes"), maxList},
}

// maxUnanswered bounds what is remembered of calls that were given up. A variable for the tests.
var maxUnanswered = 1 << 16

// methodBytes of a request are enough to know its method.
const methodBytes = 64

// errNonsense is an agent that does not speak the protocol.
var errNonsense = fmt.Errorf("the guest's agent answers nonsense: %w", errdefs.ErrDataLoss)

// errFull is a session in which too many calls have no answer. The guest is innocent: their callers have left.
var errFull = fmt.Errorf("the session with the guest's agent is full: %w", errdefs.ErrUnavailable)

// guard stands between a session and the client on it: the guest may be hostile, and the
// client would log every answer to nothing, and take any of four megabytes. What the
// guard does not pass ends the session.
type guard struct {
	net.Conn
	in, out messages

	mu      sync.Mutex
	waiting map[uint32]uint32 // stream of a request to the longest answer
	broken  error             // what did not pass; the client tells its callers less
}

func newGuard(c net.Conn) *guard {
	g := &guard{Conn: c, waiting: make(map[uint32]uint32)}
	g.out.begin, g.out.collect = g.asked, methodBytes
	g.in.begin = g.answered
	return g
}

// Read implements net.Conn.
func (g *guard) Read(b []byte) (int, error) {
	n, err := g.Conn.Read(b)
	if e := g.in.feed(b[:n]); e != nil {
		return 0, g.end(e)
	}
	return n, err
}

// end notes why the session is of no use any more. Who makes a call drops it then.
func (g *guard) end(err error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.broken == nil {
		g.broken = err
	}
	return err
}

// cause answers why the guard has ended the session, if it has.
func (g *guard) cause() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.broken
}

// Write implements net.Conn.
func (g *guard) Write(b []byte) (int, error) {
	if err := g.out.feed(b); err != nil {
		return 0, g.end(err)
	}
	return g.Conn.Write(b)
}

// asked notes a request, so that one answer to it may pass.
func (g *guard) asked(m message) error {
	limit := uint32(maxAnswer)
	for _, long := range longAnswers {
		if bytes.Contains(m.first, long.method) {
			limit = long.limit
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.waiting) >= maxUnanswered {
		return fmt.Errorf("%d calls are without an answer: %w", len(g.waiting), errFull)
	}
	g.waiting[m.stream] = limit
	return nil
}

func (g *guard) answered(m message) error {
	g.mu.Lock()
	limit, ok := g.waiting[m.stream]
	delete(g.waiting, m.stream)
	g.mu.Unlock()
	switch {
	case m.kind != typeResponse:
		return fmt.Errorf("%w: a message of type %d", errNonsense, m.kind)
	case !ok:
		return fmt.Errorf("%w: an answer to call %d, which was not made", errNonsense, m.stream)
	case m.length > limit:
		return fmt.Errorf("%w: an answer of %d bytes, where at most %d are in order", errNonsense, m.length, limit)
	}
	return nil
}

// message is the beginning of one.
type message struct {
	length, stream uint32
	kind           byte
	first          []byte // of the content, where it is collected
}

// messages finds where messages begin in a stream. begin is told of each before the
// last byte of its beginning is passed on.
type messages struct {
	head  []byte // header and first bytes of a message that is not told of yet
	rest  uint32 // bytes of the message until the next
	begin func(message) error
	// collect is how much of the content begin gets.
	collect uint32
}

func (s *messages) feed(b []byte) error {
	for len(b) > 0 {
		if s.rest > 0 {
			n := min(uint32(len(b)), s.rest)
			b, s.rest = b[n:], s.rest-n
			continue
		}
		n := min(len(b), s.headerSize()-len(s.head))
		s.head = append(s.head, b[:n]...)
		b = b[n:]
		if len(s.head) < s.headerSize() {
			continue
		}
		m := message{
			length: binary.BigEndian.Uint32(s.head), stream: binary.BigEndian.Uint32(s.head[4:]),
			kind: s.head[8], first: s.head[messageHeader:],
		}
		if err := s.begin(m); err != nil {
			return err
		}
		s.rest = m.length - uint32(len(m.first))
		s.head = s.head[:0]
	}
	return nil
}

// headerSize is how many bytes tell what the message is.
func (s *messages) headerSize() int {
	if len(s.head) < messageHeader {
		return messageHeader
	}
	return messageHeader + int(min(binary.BigEndian.Uint32(s.head), s.collect))
}
