package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"
)

// Attempts of a call, and the first pause between two of them: about eight seconds in all. That
// covers a registry's restart at a load balancer, not an outage.
const (
	attempts   = 5
	firstPause = 500 * time.Millisecond
)

// Retry repeats calls of s that end Unavailable. Every call of Store may be repeated.
func Retry(s Store) Store { return &retry{store: s, pause: firstPause} }

type retry struct {
	store Store
	pause time.Duration
}

// maxPause bounds what a registry may ask for.
const maxPause = time.Minute

// waiter is an error of a store that says when to come back.
type waiter interface{ retryAfter() time.Duration }

func (r *retry) do(ctx context.Context, call func() error) error {
	pause := r.pause
	for i := 1; ; i++ {
		err := call()
		if err == nil || !errdefs.IsUnavailable(err) || i == attempts || ctx.Err() != nil {
			return err
		}
		// Jitter keeps a fleet from knocking in step.
		wait := pause/2 + rand.N(pause/2+1)
		var w waiter
		if errors.As(err, &w) && w.retryAfter() > 0 {
			wait = min(w.retryAfter(), maxPause) + rand.N(pause/2+1)
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return err
		}
		pause *= 2
	}
}

func (r *retry) Stat(ctx context.Context, o Object) (info Info, err error) {
	err = r.do(ctx, func() error {
		info, err = r.store.Stat(ctx, o)
		return err
	})
	return info, err
}

func (r *retry) Get(ctx context.Context, o Object) (body io.ReadCloser, err error) {
	err = r.do(ctx, func() error {
		body, err = r.store.Get(ctx, o)
		return err
	})
	return body, err
}

func (r *retry) Put(ctx context.Context, o Object, c Content) error {
	return r.do(ctx, func() error { return r.store.Put(ctx, o, c) })
}

func (r *retry) Delete(ctx context.Context, tag string) error {
	return r.do(ctx, func() error { return r.store.Delete(ctx, tag) })
}

func (r *retry) Tags(ctx context.Context) (tags []string, err error) {
	err = r.do(ctx, func() error {
		tags, err = r.store.Tags(ctx)
		return err
	})
	return tags, err
}

// GetRange implements Ranger where the store below does.
func (r *retry) GetRange(ctx context.Context, d digest.Digest, offset, n int64) (body io.ReadCloser, err error) {
	s, ok := r.store.(Ranger)
	if !ok {
		return nil, fmt.Errorf("get a part of %s: %w", d, errdefs.ErrNotImplemented)
	}
	err = r.do(ctx, func() error {
		body, err = s.GetRange(ctx, d, offset, n)
		return err
	})
	return body, err
}
