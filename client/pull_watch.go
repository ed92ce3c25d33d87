package client

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// PullProgress is how far a pull is.
type PullProgress struct {
	Phase string // "resolve", "fetch", "unpack"
	Done  int64  // bytes that are here
	Total int64  // bytes, as far as the image's parts are known
}

const (
	pullPoll = 200 * time.Millisecond
	// pullSilence is how long a registry may send nothing.
	pullSilence = time.Minute
)

// pullWatch follows a pull by what the content store has of the image's parts.
type pullWatch struct {
	store   content.Store
	tell    func(PullProgress)
	silence time.Duration

	mu    sync.Mutex
	parts []ocispec.Descriptor
}

func newPullWatch(store content.Store, tell func(PullProgress)) *pullWatch {
	return &pullWatch{store: store, tell: tell, silence: pullSilence}
}

// Handle implements images.Handler: it sees each part before it is fetched.
func (w *pullWatch) Handle(_ context.Context, part ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, known := range w.parts {
		if known.Digest == part.Digest {
			return nil, nil
		}
	}
	w.parts = append(w.parts, part)
	return nil, nil
}

var _ images.Handler = (*pullWatch)(nil)

// start follows the pull of the returned context until stop. A registry that sends nothing for a minute ends it,
// Unavailable.
func (w *pullWatch) start(ctx context.Context) (pulling context.Context, stop func()) {
	pulling, cancel := context.WithCancelCause(ctx)
	over := make(chan struct{})
	var follower sync.WaitGroup
	follower.Go(func() { w.follow(pulling, cancel, over) })
	return pulling, func() { close(over); follower.Wait(); cancel(nil) }
}

func (w *pullWatch) follow(ctx context.Context, cancel context.CancelCauseFunc, over <-chan struct{}) {
	last, moved := PullProgress{}, time.Now()
	for {
		select {
		case <-over:
			return
		case <-ctx.Done():
			return
		case <-time.After(pullPoll):
		}
		now, err := w.look(ctx)
		if err != nil {
			continue // containerd does not answer: the pull itself will say so
		}
		if now != last || now.Phase == "unpack" {
			last, moved = now, time.Now()
		}
		if w.tell != nil {
			w.tell(now)
		}
		if time.Since(moved) > w.silence {
			cancel(&StalledError{now, w.silence})
			return
		}
	}
}

// StalledError is a pull whose registry is silent. Its class is Unavailable.
type StalledError struct {
	At      PullProgress // how far it came
	Silence time.Duration
}

func (e *StalledError) Error() string {
	what := "the registry has not answered"
	if e.At.Phase != "resolve" {
		what = fmt.Sprintf("the registry has stopped after %d of %d bytes, and has sent nothing", e.At.Done, e.At.Total)
	}
	return fmt.Sprintf("%s for %v. To go on, see whether it works, and pull again", what, e.Silence)
}

// Unwrap gives the class.
func (e *StalledError) Unwrap() error { return errdefs.ErrUnavailable }

func (w *pullWatch) look(ctx context.Context) (PullProgress, error) {
	w.mu.Lock()
	parts := append([]ocispec.Descriptor(nil), w.parts...)
	w.mu.Unlock()
	if len(parts) == 0 {
		return PullProgress{Phase: "resolve"}, nil
	}
	active, err := w.store.ListStatuses(ctx)
	if err != nil {
		return PullProgress{}, err
	}
	coming := map[string]int64{}
	for _, s := range active {
		coming[s.Ref] = s.Offset
	}
	p, whole := PullProgress{Phase: "fetch"}, 0
	for _, part := range parts {
		p.Total += part.Size
		if offset, ok := coming[remotes.MakeRefKey(ctx, part)]; ok {
			p.Done += min(offset, part.Size)
			continue
		}
		if _, err := w.store.Info(ctx, part.Digest); err == nil {
			p.Done += part.Size
			whole++
		} else if !errdefs.IsNotFound(err) {
			return PullProgress{}, err
		}
	}
	if whole == len(parts) {
		p.Phase = "unpack"
	}
	return p, nil
}
