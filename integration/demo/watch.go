package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"godwit.dev/godwit/integration/images"
)

// sighting is a beacon as it arrived on the wire.
type sighting struct {
	images.Beacon
	at   time.Time
	from string // IP address of the guest
}

// watcher listens for the beacons of a guest on the wire.
type watcher struct {
	mu      sync.Mutex
	last    sighting
	first   map[string]sighting // by mark: the first one after it
	seen    map[string]bool     // nonce and counter
	doubles int
	back    int // beacons with a smaller counter than one before
}

// watch reads until the socket is closed.
func watch(conn net.PacketConn) *watcher {
	w := &watcher{first: map[string]sighting{}, seen: map[string]bool{}}
	go func() {
		buf := make([]byte, 2048)
		for {
			n, from, err := conn.ReadFrom(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			var b images.Beacon
			if err != nil || json.Unmarshal(buf[:n], &b) != nil {
				continue // no beacon: somebody else's datagram
			}
			host, _, _ := net.SplitHostPort(from.String())
			w.add(sighting{Beacon: b, at: time.Now(), from: host})
		}
	}()
	return w
}

func (w *watcher) add(s sighting) {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := fmt.Sprint(s.Nonce, s.Counter)
	if w.seen[key] {
		w.doubles++
	}
	if s.Nonce == w.last.Nonce && s.Counter < w.last.Counter {
		w.back++
	}
	w.seen[key], w.last = true, s
	for mark, old := range w.first {
		if old.at.IsZero() {
			w.first[mark] = s
		}
	}
}

// mark makes the next beacon be kept under a name.
func (w *watcher) mark(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.first[name] = sighting{}
}

// after waits for the first beacon after a mark.
func (w *watcher) after(ctx context.Context, mark string) (sighting, error) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		w.mu.Lock()
		s := w.first[mark]
		w.mu.Unlock()
		if !s.at.IsZero() {
			return s, nil
		}
		select {
		case <-ctx.Done():
			return sighting{}, fmt.Errorf("wait for a beacon of the guest: %w", ctx.Err())
		case <-tick.C:
		}
	}
}

func (w *watcher) latest() sighting {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
}

// twice reports beacons that two running copies of one VM, or one that ran again from an
// older state, would have sent.
func (w *watcher) twice() (doubles, back int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.doubles, w.back
}
