package session

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// late is a channel that was read from before it was closed, by a thread that had to wait for its
// turn: what was read is obeyed when another channel has taken its place.
type late struct {
	asked, let chan struct{}
	once       sync.Once
	data       []byte
}

func (c *late) Read(b []byte) (int, error) {
	c.once.Do(func() { close(c.asked) })
	<-c.let
	n := copy(b, c.data)
	c.data = nil
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

func (c *late) Write(b []byte) (int, error) { return len(b), nil }
func (c *late) Close() error                { return nil }

// A hello may come from a channel which another one has replaced, of this host process or of one
// before. It neither resets the session nor takes it from its channel. Where that channel is
// served late, so that it takes the place of a newer one, the session goes on with the next.
func TestHelloOfAReplacedChannel(t *testing.T) {
	for name, c := range map[string]struct {
		nonce uint64
		late  bool
	}{"the same process": {nonce: 7}, "one before": {nonce: 6}, "served late": {7, true}} {
		t.Run(name, func(t *testing.T) {
			g := NewListener()
			defer g.Close()
			hello := func(nonce, epoch, recv uint64) []byte {
				f := frame{kind: typeHello, version: Version, nonce: nonce, seq: epoch, recv: recv, limit: window}
				return f.appendTo(nil)
			}
			old := &late{asked: make(chan struct{}), let: make(chan struct{}), data: hello(c.nonce, 1, 0)}
			over := make(chan struct{})
			serve := func() { defer close(over); _ = g.Serve(old) }
			if !c.late {
				go serve()
				<-old.asked
			}
			words := dialed(t, g, hello(7, 2, 0))
			conn, err := g.Accept()
			if err != nil {
				t.Fatal(err)
			}
			say := func(text string, at uint64) {
				t.Helper()
				if _, err := conn.Write([]byte(text)); err != nil {
					t.Fatal(err)
				}
				if f := words(); f.seq != at || string(f.payload) != text {
					t.Fatalf("at %d came %q, not %q at %d", f.seq, f.payload, text, at)
				}
			}
			say("words", 0)
			words = dialed(t, g, hello(7, 3, 5)) // the host has "words": they are forgotten
			say("more", 5)
			if c.late {
				go serve()
			}
			close(old.let)
			<-over
			if c.late { // the host is left without a channel
				words = dialed(t, g, hello(7, 4, 9))
			}
			say("yet more", 9)
		})
	}
}

// dialed is a new channel of the host, which has said hello; it answers what reads the next
// frame of data.
func dialed(t *testing.T, g *Listener, hello []byte) (words func() frame) {
	t.Helper()
	host, guest := net.Pipe()
	t.Cleanup(func() { host.Close() })
	go func() { _ = g.Serve(guest) }()
	if _, err := host.Write(hello); err != nil {
		t.Fatal(err)
	}
	var d decoder
	buf := make([]byte, frameSize)
	return func() frame {
		t.Helper()
		_ = host.SetReadDeadline(time.Now().Add(time.Minute))
		for {
			for f, ok := d.next(); ok; f, ok = d.next() {
				if f.kind == typeData {
					return f
				}
			}
			n, err := host.Read(buf)
			if err != nil {
				t.Fatal(err)
			}
			d.feed(buf[:n])
		}
	}
}
