package session

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
)

// pair returns both ends of a sound session.
func pair(t *testing.T) (l *lossy, host *Conn, guest net.Conn) {
	t.Helper()
	l = &lossy{guest: NewListener()}
	host = Dial(l.dial)
	guest, err := l.guest.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		host.Close()
		l.guest.Close()
		l.wg.Wait()
	})
	return l, host, guest
}

func TestCloseIsHeard(t *testing.T) {
	for _, end := range []string{"host", "guest"} {
		t.Run(end, func(t *testing.T) {
			_, host, guest := pair(t)
			a, b := net.Conn(host), guest
			if end == "guest" {
				a, b = b, a
			}
			if _, err := a.Write([]byte("bye")); err != nil {
				t.Fatal(err)
			}
			a.Close()
			got, err := io.ReadAll(b)
			if err != nil || string(got) != "bye" {
				t.Fatalf("%q %v", got, err)
			}
			if _, err := a.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
				t.Fatal(err)
			}
			if _, err := b.Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
				t.Fatal(err)
			}
		})
	}
}

func TestDeadlines(t *testing.T) {
	_, host, _ := pair(t)
	_ = host.SetDeadline(time.Now().Add(time.Millisecond))
	if _, err := host.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	if _, err := host.Write(make([]byte, 4*window)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	_ = host.SetDeadline(time.Time{})
}

// A writer stops when its reader does: memory is bounded.
func TestBackpressure(t *testing.T) {
	_, host, guest := pair(t)
	_ = host.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
	n, err := host.Write(make([]byte, 16*window))
	if !errors.Is(err, os.ErrDeadlineExceeded) || n < window || n > 2*window {
		t.Fatalf("%d %v", n, err)
	}
	if _, err := io.ReadFull(guest, make([]byte, n)); err != nil {
		t.Fatal(err)
	}
}

// A new host process ends the session of the one before.
func TestNewNonceEndsOldSession(t *testing.T) {
	l, _, guest := pair(t)
	second := Dial(l.dial)
	defer second.Close()
	if _, err := io.ReadAll(guest); err != nil {
		t.Fatal(err)
	}
	c, err := l.guest.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if up, _ := exchange(t, second, c, []byte("up"), []byte("down")); string(up) != "up" {
		t.Fatal(up)
	}
}

// A guest that is older than what the host remembers resets the session.
func TestGuestOfAnotherTimeResets(t *testing.T) {
	var current atomic.Pointer[lossy]
	first, second := &lossy{guest: NewListener()}, &lossy{guest: NewListener()}
	current.Store(first)
	host := Dial(func(ctx context.Context) (io.ReadWriteCloser, error) { return current.Load().dial(ctx) })
	defer host.Close()
	guest, err := first.guest.Accept()
	if err != nil {
		t.Fatal(err)
	}
	exchange(t, host, guest, []byte("up"), []byte("down"))
	current.Store(second)
	first.guest.Close()
	if _, err := host.Read(make([]byte, 1)); !errors.Is(err, ErrReset) || !errdefs.IsUnavailable(err) {
		t.Fatal(err)
	}
	second.guest.Close()
	first.wg.Wait()
	second.wg.Wait()
}

func TestOtherVersionIsRefused(t *testing.T) {
	host := Dial(func(context.Context) (io.ReadWriteCloser, error) {
		a, b := net.Pipe()
		go func() {
			defer b.Close()
			var d decoder
			buf := make([]byte, readSize)
			for {
				n, err := b.Read(buf)
				if err != nil {
					return
				}
				d.feed(buf[:n])
				for f, ok := d.next(); ok; f, ok = d.next() {
					answer := frame{kind: typeHello, version: Version + 1, nonce: f.nonce, seq: f.seq}
					if _, err := b.Write(answer.appendTo(nil)); err != nil {
						return
					}
				}
			}
		}()
		return a, nil
	})
	defer host.Close()
	if _, err := host.Read(make([]byte, 1)); !errdefs.IsFailedPrecondition(err) {
		t.Fatal(err)
	}
}

func TestDialFailuresAreWaitedOut(t *testing.T) {
	l := &lossy{guest: NewListener()}
	fails := 3
	host := Dial(func(ctx context.Context) (io.ReadWriteCloser, error) {
		if fails--; fails >= 0 {
			return nil, os.ErrNotExist
		}
		return l.dial(ctx)
	})
	guest, err := l.guest.Accept()
	if err != nil {
		t.Fatal(err)
	}
	exchange(t, host, guest, []byte("a"), []byte("b"))
	host.Close()
	l.guest.Close()
	l.wg.Wait()
}

// What follows a lost answer is lost with it: the repeated hello brings it again, though
// it belongs to the same epoch.
func TestRepeatedHelloBringsLostDataAgain(t *testing.T) {
	g := NewListener()
	defer g.Close()
	host, guest := net.Pipe()
	defer host.Close()
	go func() { _ = g.Serve(guest) }()
	hello := frame{kind: typeHello, version: Version, nonce: 7, seq: 1, limit: window}
	var d decoder
	next := func(kind frameType) frame {
		t.Helper()
		_ = host.SetReadDeadline(time.Now().Add(10 * time.Second))
		buf := make([]byte, frameSize)
		for {
			if f, ok := d.next(); ok {
				if f.kind == kind {
					return f
				}
				continue
			}
			n, err := host.Read(buf)
			if err != nil {
				t.Fatalf("wait for frame %d: %v", kind, err)
			}
			d.feed(buf[:n])
		}
	}
	if _, err := host.Write(hello.appendTo(nil)); err != nil {
		t.Fatal(err)
	}
	conn, err := g.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte("words")); err != nil {
		t.Fatal(err)
	}
	next(typeData) // the host never saw it, nor the answer before it
	if _, err := host.Write(hello.appendTo(nil)); err != nil {
		t.Fatal(err)
	}
	if f := next(typeData); f.seq != 0 || string(f.payload) != "words" {
		t.Errorf("after a repeated hello came %d %q, want 0 \"words\"", f.seq, f.payload)
	}
	// One that was overtaken changes nothing.
	ack := frame{kind: typeAck, version: Version, nonce: 7, recv: 5, limit: window}
	if _, err := host.Write(hello.appendTo(ack.appendTo(nil))); err != nil {
		t.Fatal(err)
	}
	if f := next(typeHello); f.seq != 1 {
		t.Errorf("an overtaken hello was answered with %d", f.seq)
	}
}
