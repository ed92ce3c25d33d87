package snapshot

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
)

// launching is a guest whose destination has to have a VMM before the pause.
type launching struct {
	*guest
	t        *testing.T
	launched atomic.Bool
}

func (l *launching) Pause(ctx context.Context) error {
	if !l.launched.Load() {
		l.t.Error("the VM stands still for the start of the VMM")
	}
	return l.guest.Pause(ctx)
}

// A VM runs on until the destination's VMM has started, however long that takes. What fails there is told.
func TestPauseAwaitsTheLaunch(t *testing.T) {
	for name, fail := range map[string]error{"starts": nil, "fails": errdefs.ErrResourceExhausted} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 33)
			g := &launching{guest: newGuest(w, 6), t: t}
			go g.run()
			a := newArrival(t, w, true)
			a.target.Launched = func(context.Context) error {
				time.Sleep(300 * time.Millisecond)
				g.launched.Store(true)
				return fail
			}
			o := w.sending(g.guest, &model{guest: g.guest, between: true})
			o.Live = g
			from, to := secure(t)
			sent, err, rerr := move(t, w, a, o, from, to)
			if fail == nil {
				if err != nil || rerr != nil {
					t.Fatal(err, rerr)
				}
				a.check(t, w, g.guest, sent)
				return
			}
			close(g.stop)
			<-g.stopped
			if !errdefs.IsResourceExhausted(err) || !errdefs.IsResourceExhausted(rerr) {
				t.Errorf("the source hears %v, the destination fails with %v", err, rerr)
			}
		})
	}
}
