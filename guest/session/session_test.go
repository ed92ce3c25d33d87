package session

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestMain keeps the suite short; -rapid.checks=N asks for more.
func TestMain(m *testing.M) {
	if err := flag.Set("rapid.checks", "20"); err != nil {
		panic(err)
	}
	flag.Parse()
	os.Exit(m.Run())
}

// lossy is a channel factory: every channel is a pipe between host and guest that
// swallows some bytes at its start and is cut after some more, on each side.
type lossy struct {
	guest *Listener
	mu    sync.Mutex
	plan  []cut
	wg    sync.WaitGroup
}

// cut says how one channel misbehaves; the channel after the last cut is sound.
type cut struct {
	garbage, after, drop int
}

func (l *lossy) dial(context.Context) (io.ReadWriteCloser, error) {
	host, guest := net.Pipe()
	l.mu.Lock()
	var c *cut
	if len(l.plan) > 0 {
		c = &l.plan[0]
		l.plan = l.plan[1:]
	}
	l.mu.Unlock()
	l.wg.Go(func() {
		var ch io.ReadWriteCloser = guest
		if c != nil {
			ch = &cutter{Conn: guest, cut: *c}
		}
		_ = l.guest.Serve(ch)
	})
	return host, nil
}

// cutter prepends garbage to what the guest reads. It closes after a number of bytes and drops
// the last ones before that, as a VMM does that dies with bytes in its buffers.
type cutter struct {
	net.Conn
	cut
	mu   sync.Mutex
	seen int
}

func (c *cutter) Read(b []byte) (int, error) {
	if c.garbage > 0 {
		n := min(len(b), c.garbage)
		c.garbage -= n
		for i := range n {
			b[i] = magic[i%len(magic)]
		}
		return n, nil
	}
	n, err := c.Conn.Read(b)
	return c.count(n), err
}

func (c *cutter) Write(b []byte) (int, error) {
	n := c.count(len(b))
	_, err := c.Conn.Write(b[:n])
	return len(b), err
}

// count returns how many of n bytes pass.
func (c *cutter) count(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen += n
	if c.seen > c.after {
		c.Conn.Close()
	}
	if c.seen > c.after-c.drop {
		time.AfterFunc(5*time.Millisecond, func() { c.Conn.Close() })
		return max(0, n-(c.seen-(c.after-c.drop)))
	}
	return n
}

func numbered(seed uint64, n int) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// exchange sends data both ways and returns what arrived.
func exchange(t interface{ Fatalf(string, ...any) }, a, b net.Conn, ab, ba []byte) (gotAB, gotBA []byte) {
	var wg sync.WaitGroup
	var errs [4]error
	gotAB, gotBA = make([]byte, len(ab)), make([]byte, len(ba))
	wg.Go(func() { _, errs[0] = a.Write(ab) })
	wg.Go(func() { _, errs[1] = b.Write(ba) })
	wg.Go(func() { _, errs[2] = io.ReadFull(b, gotAB) })
	wg.Go(func() { _, errs[3] = io.ReadFull(a, gotBA) })
	wg.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatalf("exchange: %v", err)
	}
	return gotAB, gotBA
}

// No byte is lost or repeated whatever the channel does.
func TestStreamSurvivesCuts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := NewListener()
		l := &lossy{guest: g}
		for range rapid.IntRange(0, 6).Draw(t, "cuts") {
			l.plan = append(l.plan, cut{
				garbage: rapid.IntRange(0, 3*frameSize).Draw(t, "garbage"),
				after:   rapid.IntRange(1, 8*frameSize).Draw(t, "after"),
				drop:    rapid.IntRange(0, 2*frameSize).Draw(t, "drop"),
			})
		}
		up := numbered(1, rapid.IntRange(1, 3*window).Draw(t, "up"))
		down := numbered(2, rapid.IntRange(1, 3*window).Draw(t, "down"))
		host := Dial(l.dial)
		guest, err := g.Accept()
		if err != nil {
			t.Fatalf("accept: %v", err)
		}
		_ = host.SetDeadline(time.Now().Add(30 * time.Second))
		_ = guest.SetDeadline(time.Now().Add(30 * time.Second))
		gotUp, gotDown := exchange(t, host, guest, up, down)
		if !bytes.Equal(gotUp, up) || !bytes.Equal(gotDown, down) {
			t.Fatalf("streams differ")
		}
		host.Close()
		g.Close()
		l.wg.Wait()
	})
}
