package moves

import (
	"context"
	"errors"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/internal/retry"
)

// The first and the longest pause between two questions without an answer.
const (
	awayPause    = 100 * time.Millisecond
	awayPauseMax = 2 * time.Second
)

// Patience asks a daemon that may be stopped and started again. Who has answered once is waited for
// without an end: what is asked about belongs to the daemon, and goes on with it. Who never has is
// not there, and that is said at once.
type Patience struct {
	Met   bool              // it has answered
	Waits func(cause error) // called once each time that it does not answer any more; nil: that is not told
}

// Ask makes a call until somebody answers, or ctx ends.
func (p *Patience) Ask(ctx context.Context, call func(context.Context) error) error {
	pause := retry.Backoff{Min: awayPause, Max: awayPauseMax}
	for first := true; ; first = false {
		err := call(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case !away(err):
			p.Met = true
			return err
		case !p.Met:
			return err
		case first && p.Waits != nil:
			p.Waits(err)
		}
		if pause.Wait(ctx); ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// away reports whether there was no answer. A daemon of a build before that is being stopped
// says that the call was called off. The caller has not called it off: its context goes on.
func away(err error) bool {
	return errdefs.IsUnavailable(err) || errdefs.IsDeadlineExceeded(err) || errors.Is(err, context.Canceled)
}
