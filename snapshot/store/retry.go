package store

import (
	"context"
	"io"
	"math/rand/v2"
	"time"

	"github.com/containerd/errdefs"
)

// Attempts of a call, and the first pause between two of them: about eight seconds in
// all, a registry's restart behind a load balancer, not an outage.
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

func (r *retry) do(ctx context.Context, call func() error) error {
	pause := r.pause
	for i := 1; ; i++ {
		err := call()
		if err == nil || !errdefs.IsUnavailable(err) || i == attempts || ctx.Err() != nil {
			return err
		}
		// Jitter keeps a fleet from knocking in step.
		t := time.NewTimer(pause/2 + rand.N(pause/2+1))
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
