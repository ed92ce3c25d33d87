package controller

import (
	"context"
	"crypto/tls"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
)

// Bounds of the pace at which new connections are admitted.
const (
	fastestPace  = time.Millisecond       // on a host that has processors to spare
	slowestPace  = 8 * time.Millisecond   // on a host that has none: 1,000 nodes in 8 s
	late         = 500 * time.Microsecond // a timer that fires so late says that processors are short
	admissionMax = 3 * time.Second        // a client waits 5 s for its connection; then it tries again
)

// admission lets in new connections one after the other, and pauses after each. A handshake and the
// first calls of a node cost a few milliseconds of a processor. When a whole fleet comes back, the
// calls of connected nodes run in these pauses.
//
// The pause adapts to the load. How late its timer fires is how long any other work waits for a
// processor: a late timer doubles the pause, one in time shortens it by a sixteenth.
type admission struct {
	slot chan struct{} // held while a connection is admitted, and in the pause after it
	pace time.Duration // of the holder of slot
}

func newAdmission() *admission {
	return &admission{slot: make(chan struct{}, 1), pace: fastestPace}
}

// guard is config whose handshakes wait for their turn. Each does so once the client has said hello, and
// before the server signs anything: a client that says nothing takes no turn.
func (a *admission) guard(config *tls.Config) *tls.Config {
	config = config.Clone()
	inner := config.GetConfigForClient
	config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if err := a.wait(hello.Context()); err != nil || inner == nil {
			return nil, err
		}
		return inner(hello)
	}
	return config
}

// wait for the turn of one connection. It has an error where that would take too long: the client has
// given up by then, and a handshake with it is wasted.
func (a *admission) wait(ctx context.Context) error {
	bound, cancel := context.WithTimeout(ctx, admissionMax)
	defer cancel()
	select {
	case a.slot <- struct{}{}:
		go a.pause()
		return nil
	case <-bound.Done():
		return fmt.Errorf("no turn for a new connection within %s: too many nodes connect at once: %w", admissionMax,
			errdefs.ErrUnavailable)
	}
}

// pause, adapt the pace, and let in the next connection.
func (a *admission) pause() {
	due := time.Now().Add(a.pace)
	time.Sleep(a.pace)
	a.pace = nextPace(a.pace, time.Since(due))
	<-a.slot
}

// nextPace follows a pause whose timer fired that late.
func nextPace(pace, delay time.Duration) time.Duration {
	if delay >= late {
		return min(2*pace, slowestPace)
	}
	return max(pace-pace/16, fastestPace)
}
