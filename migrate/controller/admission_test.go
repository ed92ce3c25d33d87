package controller

import (
	"context"
	"crypto/tls"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/pki"
)

// Connections that come together are admitted one after the other, in the order in which they came,
// and an idle host admits one a millisecond.
func TestConnectionsAreAdmittedInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, begun := newAdmission(), time.Now()
		order := make(chan int, 100)
		for i := range cap(order) {
			go func() {
				if err := a.wait(t.Context()); err != nil {
					t.Error(err)
				}
				order <- i
			}()
			synctest.Wait()
		}
		for i := range cap(order) {
			if got := <-order; got != i {
				t.Fatalf("connection %d was admitted in the place of %d", got, i)
			}
		}
		if took := time.Since(begun); took != 99*fastestPace {
			t.Errorf("100 connections took %s", took)
		}
		time.Sleep(slowestPace) // the last pause
	})
}

// A connection that has waited for longer than its client does is refused as unavailable, and takes
// no turn from others.
func TestConnectionWaitsForItsTurnNoLongerThanItsClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, begun := newAdmission(), time.Now()
		a.slot <- struct{}{} // as long as the host stands still
		if err := a.wait(t.Context()); !errdefs.IsUnavailable(err) || time.Since(begun) != admissionMax {
			t.Errorf("after %s: %v", time.Since(begun), err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := a.wait(ended); err == nil {
			t.Error("a connection that has ended was admitted")
		}
		<-a.slot
		if err := a.wait(t.Context()); err != nil {
			t.Error(err)
		}
		time.Sleep(slowestPace) // the last pause
	})
}

// Clients that say nothing take no turn: a node that connects after any number of them is admitted at
// once.
func TestSilentClientsTakeNoTurn(t *testing.T) {
	dir := t.TempDir()
	if err := pki.Init(dir, "c0", nil); err != nil {
		t.Fatal(err)
	}
	id, err := pki.Load(pki.In(dir))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(now)) // the certificate is of now
		a := newAdmission()
		config := a.guard(id.Server(false))
		ctx, cancel := context.WithCancel(t.Context())
		for range 600 {
			here, there := net.Pipe()
			go func() {
				if err := tls.Server(here, config).HandshakeContext(ctx); err == nil {
					t.Error("a client that says nothing is known")
				}
				_ = there.Close()
			}()
		}
		synctest.Wait()
		begun := time.Now()
		here, there := net.Pipe()
		client := make(chan error, 1)
		go func() { client <- tls.Client(there, id.ClientOf("c0")).HandshakeContext(ctx) }()
		if err := tls.Server(here, config).HandshakeContext(ctx); err != nil || time.Since(begun) > 0 {
			t.Errorf("a node waits for %v: %v", time.Since(begun), err)
		}
		if err := <-client; err != nil {
			t.Error(err)
		}
		cancel()
		time.Sleep(slowestPace)
	})
}

// A timer that fires late doubles the pause, up to a bound; timers in time shorten it step by step.
func TestAdmissionAdaptsToTheLoad(t *testing.T) {
	pace := fastestPace
	for range 10 {
		next := nextPace(pace, late)
		if next != min(2*pace, slowestPace) {
			t.Fatalf("after %s comes %s", pace, next)
		}
		pace = next
	}
	if pace != slowestPace {
		t.Errorf("a host without processors admits one each %s", pace)
	}
	for range 60 {
		next := nextPace(pace, late-1)
		if next >= pace && pace > fastestPace {
			t.Fatalf("after %s comes %s", pace, next)
		}
		pace = next
	}
	if pace != fastestPace {
		t.Errorf("an idle host admits one each %s", pace)
	}
}
