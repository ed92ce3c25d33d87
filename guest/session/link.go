package session

import (
	"io"
	"sync"
)

// readSize is what one read of a channel takes at most.
const readSize = 64 << 10

// link is one channel while it lasts. Its sender writes control frames at any time and
// the frames of conn while conn is attached to it.
type link struct {
	ch    io.ReadWriteCloser
	poked chan struct{}
	done  chan struct{}
	once  sync.Once

	mu   sync.Mutex
	ctl  []byte
	conn *Conn
}

func newLink(ch io.ReadWriteCloser) *link {
	return &link{ch: ch, poked: make(chan struct{}, 1), done: make(chan struct{})}
}

// run moves frames until the channel fails or close is called. handle is called for
// every frame that arrives.
func (l *link) run(obey func(frame)) error {
	var sender sync.WaitGroup
	sender.Go(l.send)
	defer sender.Wait()
	defer l.close()
	var d decoder
	buf := make([]byte, readSize)
	for {
		n, err := l.ch.Read(buf)
		d.feed(buf[:n])
		for f, ok := d.next(); ok; f, ok = d.next() {
			obey(f)
		}
		if err != nil {
			return err
		}
	}
}

// send writes what there is until the link is closed. One data frame per write is the
// fastest for virtio-serial.
func (l *link) send() {
	defer l.close()
	buf := make([]byte, 0, frameSize+4*headerSize)
	for {
		buf = l.batch(buf[:0])
		if len(buf) == 0 {
			select {
			case <-l.poked:
				continue
			case <-l.done:
				return
			}
		}
		if _, err := l.ch.Write(buf); err != nil {
			return
		}
	}
}

// batch appends the next bytes to write, none if there is nothing to say.
func (l *link) batch(buf []byte) []byte {
	l.mu.Lock()
	buf = append(buf, l.ctl...)
	l.ctl = nil
	c := l.conn
	l.mu.Unlock()
	if c == nil {
		return buf
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link != l {
		return buf
	}
	if f, ok := c.pending(); ok {
		return f.appendTo(buf)
	}
	return c.appendBulk(buf)
}

// control queues a frame that does not belong to the stream, after padding bytes that
// complete a frame which the channel has cut.
func (l *link) control(f frame, padding int) {
	l.mu.Lock()
	if len(l.ctl) < 4*frameSize { // a peer that does not read need not hear it again
		l.ctl = append(l.ctl, make([]byte, padding)...)
		l.ctl = f.appendTo(l.ctl)
	}
	l.mu.Unlock()
	l.poke()
}

// held reports whether the channel is one that can be held, and nothing is read from it now.
func (l *link) held() bool {
	ch, ok := l.ch.(interface{ Held() bool })
	return ok && ch.Held()
}

// attach makes the link carry c's stream. It is called with c's lock held.
func (l *link) attach(c *Conn) {
	c.link = l
	l.mu.Lock()
	l.conn = c
	l.mu.Unlock()
	l.poke()
}

// detach leaves c without a channel if it had this one.
func (l *link) detach(c *Conn) {
	c.mu.Lock()
	if c.link == l {
		c.link = nil
	}
	c.mu.Unlock()
}

func (l *link) poke() {
	select {
	case l.poked <- struct{}{}:
	default:
	}
}

func (l *link) close() {
	l.once.Do(func() {
		close(l.done)
		l.ch.Close()
	})
}
