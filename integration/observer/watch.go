package observer

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

// Sighting is a beacon as it arrived on the wire.
type Sighting struct {
	images.Beacon
	At   time.Time
	From string // IP address of the guest
}

// Watcher listens for the beacons of a guest on the wire.
type Watcher struct {
	mu      sync.Mutex
	last    Sighting
	first   map[string]Sighting // by mark: the first one after it
	seen    map[string]bool     // nonce and counter
	doubles int
	back    int // beacons with a smaller counter than one before
}

// Watch reads until the socket is closed.
func Watch(conn net.PacketConn) *Watcher {
	w := &Watcher{first: map[string]Sighting{}, seen: map[string]bool{}}
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
			w.add(Sighting{Beacon: b, At: time.Now(), From: host})
		}
	}()
	return w
}

func (w *Watcher) add(s Sighting) {
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
		if old.At.IsZero() {
			w.first[mark] = s
		}
	}
}

// Mark makes the next beacon be kept under a name.
func (w *Watcher) Mark(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.first[name] = Sighting{}
}

// After waits for the first beacon after a mark.
func (w *Watcher) After(ctx context.Context, mark string) (Sighting, error) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		w.mu.Lock()
		s := w.first[mark]
		w.mu.Unlock()
		if !s.At.IsZero() {
			return s, nil
		}
		select {
		case <-ctx.Done():
			return Sighting{}, fmt.Errorf("wait for a beacon of the guest: %w", ctx.Err())
		case <-tick.C:
		}
	}
}

// Latest answers the last beacon heard.
func (w *Watcher) Latest() Sighting {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
}

// Twice reports beacons that two running copies of one VM, or one that ran again from an
// older state, would have sent.
func (w *Watcher) Twice() (doubles, back int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.doubles, w.back
}
