package controller

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
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
