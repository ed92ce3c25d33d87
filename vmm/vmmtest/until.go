package vmmtest

import (
	"context"
	"os"
	"time"
)

// until is a context that ends by its time, without a time that is known beforehand.
type until struct {
	context.Context
	over chan struct{}
}

func (u until) Done() <-chan struct{} { return u.over }

func (u until) Err() error {
	select {
	case <-u.over:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// Until answers a context whose deadline is the moment at which happened says yes, or the end of
// ctx: a test that wants a deadline to come in the midst of a call sets it so, however slow the
// machine is.
func Until(ctx context.Context, happened func() bool) context.Context {
	u := until{ctx, make(chan struct{})}
	go func() {
		defer close(u.over)
		for ctx.Err() == nil && !happened() {
			time.Sleep(time.Millisecond)
		}
	}()
	return u
}

// Tell says something to another process by a file that is there from then on.
func Tell(path string) { _ = os.WriteFile(path, nil, 0o600) }

// Told reports whether the file is there.
func Told(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
