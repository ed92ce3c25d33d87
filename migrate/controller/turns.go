package controller

import (
	"context"
	"crypto/tls"
	"time"
)

// Bounds of handshakes that are under way.
const (
	atOnce   = 8
	longTurn = 10 * time.Millisecond
)

// turns has a few handshakes be under way at a time, for each is a few milliseconds of a
// processor: when a whole fleet comes back, the calls of nodes that are connected come between them.
type turns struct{ slots chan struct{} }

func newTurns() *turns { return &turns{slots: make(chan struct{}, atOnce)} }

// handshake waits for a turn. A client that is slow loses it, and goes on: it holds up others for
// longTurn at most.
func (t *turns) handshake(ctx context.Context, conn *tls.Conn) error {
	select {
	case t.slots <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	over := make(chan struct{})
	defer close(over)
	go func() {
		timer := time.NewTimer(longTurn)
		defer timer.Stop()
		select {
		case <-over:
		case <-timer.C:
		}
		<-t.slots
	}()
	return conn.HandshakeContext(ctx)
}
