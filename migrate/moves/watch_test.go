package moves

import (
	"context"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// watcher is the other end of a stream.
type watcher struct {
	nodev1.Moves_WatchServer
	told int
}

func (w *watcher) Send(*nodev1.MoveEvent) error { w.told++; return nil }

// What a stream is asked with is checked as every call is, before anything is told.
func TestWatchIsChecked(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, service := newSleeper()
	for _, operation := range []string{"a\x1b[2J", "../../x", "a b"} {
		to := &watcher{}
		err := errgrpc.ToNative(service.Watch(ctx, &nodev1.WatchRequest{Operation: operation}, to))
		if !errdefs.IsInvalidArgument(err) || to.told > 0 {
			t.Errorf("%q: %v, told %d events", operation, err, to.told)
		}
	}
}
