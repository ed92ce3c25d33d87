package shim

import (
	"context"
	"fmt"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/snapshot/worker"
)

// A worker that receives may have been taken over by what it reads: each order counts once, and in its place.
func TestArrivalTakesOrdersOnce(t *testing.T) {
	w := coming(t)
	w.store.orders = func(ctx context.Context, a worker.Arrival) error {
		load := func() error { return a.Load(ctx, streamDigest, w.store.resume, nil) }
		for _, order := range []struct {
			name  string
			do    func() error
			taken bool
		}{
			{"load before complete", load, false},
			{"launched before complete", func() error { return a.Launched(ctx) }, false},
			{"complete", func() error { return a.Complete(ctx) }, true},
			{"complete again", func() error { return a.Complete(ctx) }, false},
			{"launched", func() error { return a.Launched(ctx) }, true},
			{"load", load, true},
			{"load again", load, false},
			{"complete at the end", func() error { return a.Complete(ctx) }, false},
		} {
			if err := order.do(); (err == nil) != order.taken || !order.taken && !errdefs.IsFailedPrecondition(err) {
				t.Errorf("%s: %v", order.name, err)
			}
		}
		return nil
	}
	w.must("create", w.receive())
	w.connect()
	if !w.arrived() {
		t.Fatalf("phase %s", w.phase())
	}
	w.must("kill", w.kill("", 9))
	w.must("delete", w.delete())
	w.nothingLeft()
}

// Another connection is taken only if nothing has come of the one before: no file was written, no VMM started.
func TestArrivalBeginsOnce(t *testing.T) {
	for name, orders := range map[string]func(context.Context, worker.Arrival) error{
		"the source says that it is none": func(context.Context, worker.Arrival) error {
			return fmt.Errorf("the other end: %w", errdefs.ErrUnauthenticated)
		},
		"a worker says so after an order": func(ctx context.Context, a worker.Arrival) error {
			if err := a.Complete(ctx); err != nil {
				return err
			}
			return fmt.Errorf("handshake: %w", worker.ErrStranger)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := coming(t)
			begun := 0
			w.store.orders = func(ctx context.Context, a worker.Arrival) error {
				if begun++; begun > 1 {
					return fmt.Errorf("begun again: %w", errdefs.ErrAborted)
				}
				return orders(ctx, a)
			}
			w.must("create", w.receive())
			w.connect()
			w.connect()
			if status := w.wait(""); status != killed || w.phase() != journal.Fenced || begun != 1 {
				t.Errorf("exit status %d, phase %s, %d connections taken", status, w.phase(), begun)
			}
			w.must("delete", w.delete())
			w.nothingLeft()
		})
	}
}
