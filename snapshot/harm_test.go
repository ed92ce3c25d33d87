package snapshot

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/snapshot/stream"
)

// middle carries what both ends say, and can harm the source's frames.
type middle struct {
	frames int // to let pass
	harm   func(frame []byte, rest io.Reader) []byte
}

// between answers two connections with a middle between them. Nothing is encrypted, so
// that the ends' own checks are what is looked at.
func (m *middle) between(t *testing.T) (source, destination net.Conn) {
	t.Helper()
	a, b := net.Pipe()
	c, d := net.Pipe()
	go func() { _, _ = io.Copy(b, c); b.Close(); c.Close() }()
	go func() {
		defer b.Close()
		defer c.Close()
		for n := 0; ; n++ {
			head := make([]byte, 48)
			if _, err := io.ReadFull(b, head); err != nil {
				return
			}
			frame := append(head, make([]byte, int(head[4])|int(head[5])<<8|int(head[6])<<16)...)
			if _, err := io.ReadFull(b, frame[48:]); err != nil {
				return
			}
			if n == m.frames && m.harm != nil {
				frame = m.harm(frame, b)
			}
			if _, err := c.Write(frame); err != nil || frame == nil {
				return
			}
		}
	}()
	return a, d
}

// Whatever happens to a frame on its way, both ends answer a typed error, nothing is
// loaded, and the VM was not lost. Each frame of a move is harmed in turn.
func TestHarmedFrames(t *testing.T) {
	harms := map[string]func(frame []byte, rest io.Reader) []byte{
		"kind":      func(f []byte, _ io.Reader) []byte { f[0] ^= 3; return f },
		"codec":     func(f []byte, _ io.Reader) []byte { f[1] ^= 1; return f },
		"space":     func(f []byte, _ io.Reader) []byte { f[2] ^= 1; return f },
		"number":    func(f []byte, _ io.Reader) []byte { f[8]++; return f },
		"hash":      func(f []byte, _ io.Reader) []byte { f[20] ^= 1; return f },
		"last byte": func(f []byte, _ io.Reader) []byte { f[len(f)-1] ^= 1; return f },
		"cut":       func(f []byte, _ io.Reader) []byte { return nil },
		"twice":     func(f []byte, _ io.Reader) []byte { return append(bytes.Clone(f), f...) },
		"too long":  func(f []byte, _ io.Reader) []byte { f[6], f[7] = 0xff, 0xff; return f },
	}
	whole := &middle{}
	count := frameCount(t, whole)
	for name, harm := range harms {
		t.Run(name, func(t *testing.T) {
			for n := 0; n < count; n += max(1, count/5) {
				w := newWorld(t, 34)
				g := newGuest(w, 4)
				close(g.stopped)
				a := newArrival(t, w, true)
				m := &middle{frames: n, harm: harm}
				from, to := m.between(t)
				_, err, rerr := move(t, w, a, w.sending(g, nil), from, to)
				if a.loaded > 0 && name != "twice" { // the second one of the last frame comes after the end
					t.Errorf("frame %d: loaded", n)
				}
				for side, err := range map[string]error{"source": err, "destination": rerr} {
					if err == nil && name == "twice" && a.loaded == 1 {
						continue
					}
					if !errdefs.IsDataLoss(err) && !errdefs.IsUnavailable(err) {
						t.Errorf("frame %d, %s: %v", n, side, err)
					}
				}
			}
		})
	}
}

func frameCount(t *testing.T, m *middle) int {
	t.Helper()
	n := 0
	m.frames, m.harm = 0, func(f []byte, _ io.Reader) []byte { m.frames++; n++; return f }
	w := newWorld(t, 34)
	g := newGuest(w, 4)
	close(g.stopped)
	from, to := m.between(t)
	if _, err, rerr := move(t, w, newArrival(t, w, true), w.sending(g, nil), from, to); err != nil || rerr != nil {
		t.Fatal(err, rerr)
	}
	return n
}

// cutting closes itself after so many bytes.
type cutting struct {
	net.Conn
	left atomic.Int64
}

func (c *cutting) Write(p []byte) (int, error) {
	if c.left.Add(-int64(len(p))) < 0 {
		c.Close()
		return 0, net.ErrClosed
	}
	return c.Conn.Write(p)
}

// A connection that is cut at any byte, by either side, ends both with Unavailable, and leaves no goroutine.
func TestCutConnection(t *testing.T) {
	before := runtime.NumGoroutine()
	for _, at := range []int64{0, 100, 5_000, 400_000, 1 << 20, 3 << 19} {
		w := newWorld(t, 35)
		g := newGuest(w, 4)
		close(g.stopped)
		a := newArrival(t, w, true)
		from, to := secure(t)
		c := &cutting{Conn: from}
		c.left.Store(at)
		_, err, rerr := move(t, w, a, w.sending(g, nil), c, to)
		if !errdefs.IsUnavailable(err) || !errdefs.IsUnavailable(rerr) || a.loaded != 0 {
			t.Errorf("cut at %d: source %v, destination %v", at, err, rerr)
		}
	}
	for begun := time.Now(); runtime.NumGoroutine() > before+2; time.Sleep(5 * time.Millisecond) {
		if time.Since(begun) > 10*time.Second {
			t.Fatalf("%d goroutines, were %d", runtime.NumGoroutine(), before)
		}
	}
}

// A slow destination costs no memory: the source waits for it.
func TestSlowDestination(t *testing.T) {
	w := newWorld(t, 36)
	g := newGuest(w, 4)
	close(g.stopped)
	from, to := secure(t)
	ctx, cancel := context.WithCancel(t.Context())
	there, end := context.WithCancel(t.Context()) // its own: each end has one reason to end
	defer end()
	done := make(chan error, 1)
	stuck := make(chan struct{})
	a := newArrival(t, w, false)
	a.target.Complete = func(ctx context.Context) error { close(stuck); <-ctx.Done(); return ctx.Err() }
	go func() { done <- stream.Receive(there, to, a.target) }()
	failed := make(chan error, 1)
	go func() { _, err := Send(ctx, from, w.src, w.sending(g, nil)); failed <- err }()
	<-stuck
	runtime.GC() // of the tests before
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	if stats.HeapInuse > 64<<20 {
		t.Errorf("%d bytes of heap", stats.HeapInuse)
	}
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("source: %v", err)
	}
	end()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("destination: %v", err)
	}
}
