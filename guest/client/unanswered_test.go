package client

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	agentv1 "godwit.dev/godwit/api/agent/v1"
)

// Calls that were given up are in the guest still, as long as what they wait for does not come. A session with too many
// of them is replaced. No caller hears of it.
func TestUnansweredCallsEndASession(t *testing.T) {
	was := maxUnanswered
	maxUnanswered = 8
	t.Cleanup(func() { maxUnanswered = was })
	f := newFake(t)
	a := f.connect(t)
	held := make(chan error, 1)
	go func() { // is in the session that goes, and does not notice
		_, err := a.Wait(t.Context(), &agentv1.WaitRequest{Id: "x"})
		held <- err
	}()
	for range 3 * maxUnanswered {
		ctx, cancel := context.WithCancel(t.Context()) // without a bound, of which the guest would know
		time.AfterFunc(time.Millisecond, cancel)
		_, err := a.Wait(ctx, &agentv1.WaitRequest{Id: "x"})
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	if _, err := a.Info(t.Context(), &agentv1.InfoRequest{}); err != nil {
		t.Error(err)
	}
	close(f.block)
	if err := <-held; err != nil {
		t.Error(err)
	}
}

// A Wait is asked anew now and then: the guest does not keep one for ever whose caller has left.
func TestWaitIsAskedAnew(t *testing.T) {
	was := waitBound
	waitBound = 20 * time.Millisecond
	t.Cleanup(func() { waitBound = was })
	f := &waited{fake: newFake(t), bounded: make(chan struct{})}
	f.serve(t, f)
	a := f.connect(t)
	ended := make(chan error, 1)
	go func() {
		exit, err := a.WaitExit(t.Context(), "x")
		if err == nil && exit.Status != 7 {
			err = errors.New("another exit")
		}
		ended <- err
	}()
	<-f.bounded
	close(f.block)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// waited says when its third Wait has come, each of which had a bound.
type waited struct {
	*fake
	waits   atomic.Int64
	bounded chan struct{}
}

func (w *waited) Wait(ctx context.Context, r *agentv1.WaitRequest) (*agentv1.WaitResponse, error) {
	if _, bounded := ctx.Deadline(); bounded && w.waits.Add(1) == 3 {
		close(w.bounded)
	}
	return w.fake.Wait(ctx, r)
}
