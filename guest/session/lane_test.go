package session

import (
	"bytes"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"pgregory.net/rapid"
)

// tape is a source that ends: it keeps all that it was given.
type tape struct {
	mu          sync.Mutex
	data        []byte
	base        uint64 // what lies before was confirmed, and is gone
	next, limit uint64
	skip, ended bool
	granted     uint64 // the most that was wanted beyond what was confirmed
}

func (s *tape) Want(w Want) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit = w.Limit
	s.base = max(s.base, w.Have)
	if w.Limit > 0 {
		s.granted = max(s.granted, w.Limit-w.Have)
	}
	if w.Again {
		s.next, s.ended, s.skip = max(w.From, s.base), false, w.From < s.base
	}
}

func (s *tape) Next(p []byte) (Piece, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.limit == 0 {
		return Piece{}, false
	}
	n := copy(p[:min(uint64(len(p)), max(s.limit, s.next)-s.next)], s.data[s.next:])
	piece := Piece{At: s.next, Len: n, Skip: s.skip}
	s.next += uint64(n)
	piece.End = s.next == uint64(len(s.data)) && !s.ended
	s.ended, s.skip = s.ended || piece.End, false
	return piece, n > 0 || piece.End || piece.Skip
}

// brings reads a lane to its end, in steps of max, confirms all of it, and wants it to be that.
func brings(l *Lane, max int, want []byte) error {
	var got []byte
	for at := uint64(0); ; {
		data, from, end, err := l.Read(timeout{}, at, max, time.Minute)
		if err != nil || from != at || len(data) > max {
			return fmt.Errorf("%d bytes at %d, not %d: %v", len(data), from, at, err)
		}
		got = append(got, data...)
		if at += uint64(len(data)); !end {
			continue
		}
		if !bytes.Equal(got, want) {
			return fmt.Errorf("%d bytes, not %d, or others", len(got), len(want))
		}
		return nil
	}
}

// timeout is a context that never ends: rapid's T has none.
type timeout struct{}

func (timeout) Deadline() (time.Time, bool) { return time.Time{}, false }
func (timeout) Done() <-chan struct{}       { return nil }
func (timeout) Err() error                  { return nil }
func (timeout) Value(any) any               { return nil }

// Whatever the channel does, a lane brings every byte once and in order, together with a stream
// that flows. It never has more in memory than its window.
func TestLaneSurvivesCuts(t *testing.T) {
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
		tapes := map[string]*tape{
			"a": {data: numbered(1, rapid.IntRange(0, 3*laneWindow).Draw(t, "a"))},
			"b": {data: numbered(2, rapid.IntRange(0, laneWindow).Draw(t, "b"))},
		}
		g.Open = func(name []byte) Source { return tapes[string(name)] }
		up := numbered(3, rapid.IntRange(1, window).Draw(t, "up"))
		step := rapid.IntRange(1000, 2*laneWindow).Draw(t, "step")
		host := Dial(l.dial)
		guest, err := g.Accept()
		if err != nil {
			t.Fatalf("accept: %v", err)
		}
		a, b := host.Lane([]byte("a"), 0), host.Lane([]byte("b"), 0)
		done := make(chan error, 1)
		go func() { done <- brings(b, step, tapes["b"].data) }()
		if gotUp, gotDown := exchange(t, host, guest, up, up); !bytes.Equal(gotUp, up) || !bytes.Equal(gotDown, up) {
			t.Fatalf("streams differ")
		}
		if err := brings(a, step, tapes["a"].data); err != nil {
			t.Fatalf("lane a: %v", err)
		}
		if err := <-done; err != nil {
			t.Fatalf("lane b: %v", err)
		}
		host.Close()
		g.Close()
		l.wg.Wait()
		if tapes["a"].granted > laneWindow {
			t.Fatalf("%d bytes were wanted at once", tapes["a"].granted)
		}
	})
}

// lanes returns a session whose guest has one stream, "s".
func lanes(t *testing.T, data []byte) (*Conn, *tape) {
	t.Helper()
	l := &lossy{guest: NewListener()}
	src := &tape{data: data}
	l.guest.Open = func(name []byte) Source {
		if string(name) != "s" {
			return nil
		}
		return src
	}
	host := Dial(l.dial)
	if _, err := l.guest.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		host.Close()
		l.guest.Close()
		l.wg.Wait()
	})
	return host, src
}

// What was taken and not confirmed comes again; what was confirmed is gone.
func TestLaneGoesBack(t *testing.T) {
	data := numbered(1, 3000)
	host, src := lanes(t, data)
	l := host.Lane([]byte("s"), 0)
	for _, step := range []struct {
		offset uint64
		at     uint64
	}{{0, 0}, {1000, 1000}, {1000, 1000}, {2500, 2500}, {100, 2500}, {2600, 2600}} {
		got, at, _, err := l.Read(t.Context(), step.offset, 1000, time.Minute)
		if err != nil || at != step.at || !bytes.Equal(got, data[at:min(int(at)+1000, len(data))]) {
			t.Fatalf("%+v: %d bytes at %d, or others: %v", step, len(got), at, err)
		}
	}
	// Another lane, as of another host that knows less, goes on where the guest is.
	if got, at, end, err := host.Lane([]byte("s"), 0).Read(t.Context(), 0, 5000, time.Minute); err != nil || at < 2500 ||
		!end || !bytes.Equal(got, data[at:]) {
		t.Fatalf("%d bytes at %d, end %v: %v", len(got), at, end, err)
	}
	// Also where that is beyond all that it may want at first.
	src.mu.Lock()
	src.data, src.base = numbered(2, 4*laneWindow), 3*laneWindow
	src.mu.Unlock()
	if got, at, _, err := host.Lane([]byte("s"), 0).Read(t.Context(), 0, 100, time.Minute); err != nil ||
		at != 3*laneWindow || len(got) == 0 {
		t.Fatalf("%d bytes at %d: %v", len(got), at, err)
	}
}

func TestLaneOfNoStream(t *testing.T) {
	host, _ := lanes(t, nil)
	if _, _, _, err := host.Lane([]byte("other"), 0).Read(t.Context(), 0, 1, time.Minute); !errdefs.IsNotFound(err) {
		t.Fatal(err)
	}
	l := host.Lane([]byte("s"), 0)
	if _, _, end, err := l.Read(t.Context(), 0, 1, time.Minute); !end || err != nil {
		t.Fatal(end, err)
	}
	host.Close()
	if _, _, _, err := host.Lane([]byte("s"), 0).Read(t.Context(), 0, 1, time.Minute); err == nil {
		t.Fatal("a lane of a closed session reads")
	}
}
