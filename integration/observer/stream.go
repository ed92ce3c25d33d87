package observer

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"godwit.dev/godwit/integration/images"
)

// Stream sends numbered datagrams to the echo of a guest, as many a second as it was told.
// What comes back is heard by Ports.
type Stream struct {
	stop func()
	over sync.WaitGroup

	mu   sync.Mutex
	sent []time.Time // of datagram i+1
}

// Send begins to. One that is late is sent at once, so that the rate is kept.
func Send(ctx context.Context, conn net.PacketConn, to string, rate int) (*Stream, error) {
	at, err := net.ResolveUDPAddr("udp4", net.JoinHostPort(to, probePort))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	s := &Stream{stop: cancel}
	s.over.Go(func() {
		begun, interval := time.Now(), time.Second/time.Duration(rate)
		for n := uint64(1); Pause(ctx, time.Until(begun.Add(time.Duration(n)*interval))) == nil; n++ {
			data, err := json.Marshal(images.Beacon{Counter: n})
			if err != nil {
				return
			}
			s.mu.Lock()
			s.sent = append(s.sent, time.Now())
			s.mu.Unlock()
			_, _ = conn.WriteTo(data, at) // what is not sent is not heard
		}
	})
	return s, nil
}

// Stop ends it and answers how many were sent.
func (s *Stream) Stop() int {
	s.stop()
	s.over.Wait()
	return s.Sent()
}

// Sent answers how many have been.
func (s *Stream) Sent() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.sent)
}

// During answers how many were sent from the datagram first on until that time.
func (s *Stream) During(first uint64, until time.Time) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	end, _ := slices.BinarySearchFunc(s.sent, until, time.Time.Compare)
	return max(0, end-int(first)+1)
}

// Quiet waits until nothing new is heard for that long.
func (p *Ports) Quiet(ctx context.Context, long time.Duration) error {
	for last, since := p.heard(), time.Now(); time.Since(since) < long; {
		if err := Pause(ctx, long/20); err != nil {
			return fmt.Errorf("wait until the guest is silent: %w", err)
		}
		if now := p.heard(); now != last {
			last, since = now, time.Now()
		}
	}
	return nil
}

// heard answers how many ticks, at all places.
func (p *Ports) heard() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, ticks := range p.ticks {
		n += len(ticks)
	}
	return n
}

// Missing answers how many of the first so many datagrams never arrived.
func (p *Ports) Missing(sent int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	seen := map[uint64]bool{}
	for _, ticks := range p.ticks {
		for _, t := range ticks {
			seen[t.Counter] = true
		}
	}
	missing := 0
	for n := range sent {
		if !seen[uint64(n)+1] {
			missing++
		}
	}
	return missing
}
