package session

import (
	"io"
	"net"
	"sync"
)

// Listener is the guest's end. It has at most one session: a hello with a new nonce
// ends the one before, because a new host process knows nothing of it.
type Listener struct {
	// Open finds the source of a lane by the name that the host gave; nil if there is none.
	// It is set before Serve.
	Open func(name []byte) Source

	mu      sync.Mutex
	conn    *Conn // the current session, ended or not
	link    *link // the newest channel
	backlog chan *Conn
	done    chan struct{}
	closed  bool
}

// NewListener returns a listener without a channel.
func NewListener() *Listener {
	return &Listener{backlog: make(chan *Conn, 16), done: make(chan struct{})}
}

// Serve carries sessions on ch until it fails. A later channel takes the place of an
// earlier one.
func (g *Listener) Serve(ch io.ReadWriteCloser) error {
	l := newLink(ch)
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		l.close()
		return net.ErrClosed
	}
	if g.link != nil {
		g.link.close()
	}
	g.link = l
	g.mu.Unlock()
	err := l.run(func(f frame) { g.handle(l, f) })
	g.mu.Lock()
	c := g.conn
	g.mu.Unlock()
	if c != nil {
		l.detach(c)
	}
	return err
}

// Accept implements net.Listener.
func (g *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-g.backlog:
		return c, nil
	case <-g.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. The current session ends with it.
func (g *Listener) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil
	}
	g.closed = true
	close(g.done)
	if g.link != nil {
		g.link.close()
	}
	if g.conn != nil {
		g.conn.finish(io.EOF)
	}
	return nil
}

// Addr implements net.Listener.
func (g *Listener) Addr() net.Addr { return addr(0) }

func (g *Listener) handle(l *link, f frame) {
	if f.kind == typeHello {
		g.greeted(l, f)
		return
	}
	g.mu.Lock()
	c := g.conn
	g.mu.Unlock()
	if c == nil || c.nonce != f.nonce || f.version != Version {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil || c.link != l {
		return
	}
	switch f.kind {
	case typeReset:
		c.end(ErrReset)
	case typeFinish:
		c.end(io.EOF)
	case typeData, typeAck:
		if !c.confirm(f.recv, f.limit) {
			c.end(ErrReset)
			l.control(frame{kind: typeReset, version: Version, nonce: f.nonce}, 0)
		} else if f.kind == typeData {
			c.accept(f) // after a gap the host says hello
		}
	case typeWant:
		c.serveWant(f, g.Open)
	}
}

// Poke says that a source has something to send.
func (g *Listener) Poke() {
	g.mu.Lock()
	l := g.link
	g.mu.Unlock()
	if l != nil {
		l.poke()
	}
}

// features are what this end can do.
func (g *Listener) features() uint16 {
	if g.Open == nil {
		return 0
	}
	return featureBulk
}

// greeted answers a hello: it goes on with the session, begins one, or refuses.
func (g *Listener) greeted(l *link, f frame) {
	answer := frame{kind: typeHello, version: Version, features: g.features(), nonce: f.nonce, seq: f.seq, limit: window}
	if f.version != Version {
		l.control(answer, 0) // the host sees our version and gives up
		return
	}
	c, replaced := g.session(l, f)
	goesOn := c != nil
	if goesOn {
		goesOn, replaced = c.resume(l, f, &answer)
	}
	if replaced {
		return // an answer would not be read
	}
	if !goesOn {
		answer.kind = typeReset
	}
	l.control(answer, 0)
}

// session returns the session of a hello, a new one if the host has just begun it. What is still
// heard from a channel that another one has replaced says nothing of the session.
func (g *Listener) session(l *link, f frame) (c *Conn, replaced bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.link != l {
		return nil, true
	}
	if g.closed || g.conn != nil && g.conn.nonce == f.nonce {
		return g.conn, false
	}
	if f.recv != 0 {
		return nil, false // the host remembers what this guest does not
	}
	c = newConn(f.nonce)
	select {
	case g.backlog <- c:
	default:
		return nil, false
	}
	if g.conn != nil {
		g.conn.finish(io.EOF)
	}
	g.conn = c
	return c, false
}

// resume attaches the session to the channel that the hello came on and sends again what the
// host does not have. A repeated hello does the same: what followed the first answer may be lost
// with it. Only a hello that has been overtaken changes nothing: what it asks for is forgotten.
// A frame after it may have overtaken it. Since each channel begins with a hello of its own,
// another channel may have too.
func (c *Conn) resume(l *link, f frame, answer *frame) (goesOn, replaced bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.seq < c.epoch {
		return false, true
	}
	if c.err != nil || c.closed {
		return false, false
	}
	fresh := f.seq > c.epoch || c.link != l
	if (fresh || f.recv >= c.outBase) && !c.rewind(f.recv, f.limit) {
		c.end(ErrReset)
		return false, false
	}
	if fresh {
		c.epoch = f.seq
		c.sources.silenceAll() // until the host says from where it wants them
	}
	features := answer.features
	c.features = f.features & features
	*answer = c.stamp(typeHello)
	answer.seq, answer.features = f.seq, features
	l.attach(c)
	return true, false
}

// finish ends the session from this side without a word to the host.
func (c *Conn) finish(err error) {
	c.mu.Lock()
	c.end(err)
	c.link = nil
	c.mu.Unlock()
}
