//go:build integration

package crash

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

// sign is a beacon of the guest as it arrived on the wire.
type sign struct {
	images.Beacon
	at   time.Time
	from string // address of the guest
}

// watcher hears the guest. What it hears is the only proof that a VM runs, and that no
// second one does.
type watcher struct {
	mu    sync.Mutex
	last  sign
	seen  map[string]bool
	wrong []string // beacons of a second runner, or of an older state that ran again
}

// watch reads until the socket is closed.
func watch(conn net.PacketConn) *watcher {
	w := &watcher{seen: map[string]bool{}}
	go func() {
		buf := make([]byte, 2048)
		for {
			n, from, err := conn.ReadFrom(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			var b images.Beacon
			if err == nil && json.Unmarshal(buf[:n], &b) == nil {
				host, _, _ := net.SplitHostPort(from.String())
				w.add(sign{b, time.Now(), host})
			}
		}
	}()
	return w
}

func (w *watcher) add(s sign) {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := fmt.Sprint(s.Nonce, s.Counter)
	switch {
	case w.seen[key]:
		w.wrong = append(w.wrong, fmt.Sprintf("%s../%d came twice", s.Nonce[:8], s.Counter))
	case s.Nonce == w.last.Nonce && s.Counter < w.last.Counter:
		w.wrong = append(w.wrong, fmt.Sprintf("%s../%d came after %d", s.Nonce[:8], s.Counter, w.last.Counter))
	}
	w.seen[key], w.last = true, s
}

// rewind forgets what was heard: an older state is to run, by order.
func (w *watcher) rewind() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last, w.seen = sign{}, map[string]bool{}
}

func (w *watcher) latest() sign {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
}

// duplicates answers what a second runner said, once.
func (w *watcher) duplicates() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	wrong := w.wrong
	w.wrong = nil
	return wrong
}

// next waits for a beacon later than since.
func (w *watcher) next(ctx context.Context, since time.Time) (s sign, err error) {
	err = harness.Poll(ctx, runBound, func(context.Context) error {
		if s = w.latest(); !s.at.After(since) {
			return fmt.Errorf("no beacon of the guest since %s", since.Format(time.TimeOnly))
		}
		return nil
	})
	return s, err
}
