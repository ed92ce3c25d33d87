package store_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"

	"godwit.dev/godwit/snapshot/store"
	"godwit.dev/godwit/snapshot/store/storetest"
)

// drip answers a byte at a time, without end: the next one always comes before the client takes it for a stall.
func drip(w http.ResponseWriter, r *http.Request, every time.Duration) {
	for r.Context().Err() == nil {
		if _, err := w.Write([]byte(" ")); err != nil {
			return
		}
		_ = http.NewResponseController(w).Flush()
		time.Sleep(every)
	}
}

// A registry that sends an answer byte for byte holds up a call for so long, and no longer. A slow transfer of a blob
// goes on: its bytes are of use.
func TestDrippingAnswers(t *testing.T) {
	const bound = 500 * time.Millisecond
	data, a := noise(16)
	m := manifestOf(a)
	session := func(r *http.Request) bool { return r.Method == http.MethodPost }
	for name, test := range map[string]struct {
		call   func(ctx context.Context, s store.Store) error
		drips  func(r *http.Request) bool // nil: every request
		status int
	}{
		"a refused deletion": {func(ctx context.Context, s store.Store) error { return s.Delete(ctx, "t") }, nil, 403},
		"a deletion":         {func(ctx context.Context, s store.Store) error { return s.Delete(ctx, "t") }, nil, 202},
		"a manifest": {func(ctx context.Context, s store.Store) error {
			_, err := store.Read(ctx, s, store.Manifest(m.Digest.String()), 1<<20)
			return err
		}, nil, 200},
		"a manifest that is put": {func(ctx context.Context, s store.Store) error {
			return s.Put(ctx, store.Manifest("t"), m)
		}, nil, 201},
		"tags": {func(ctx context.Context, s store.Store) error {
			_, err := s.Tags(ctx)
			return err
		}, nil, 200},
		"an upload's session": {func(ctx context.Context, s store.Store) error {
			return s.Put(ctx, store.Blob(a.Digest), a)
		}, session, 202},
		"an upload's end": {func(ctx context.Context, s store.Store) error {
			return s.Put(ctx, store.Blob(a.Digest), a)
		}, func(r *http.Request) bool { return !session(r) }, 201},
		"a refused blob": {func(ctx context.Context, s store.Store) error {
			_, err := store.ReadBlob(ctx, s, a.Digest, a.Size)
			return err
		}, nil, 403},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			outer := storetest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Location", "/upload")
				switch {
				case r.URL.Path == "/v2/":
				case test.drips == nil || test.drips(r):
					w.WriteHeader(test.status)
					drip(w, r, bound/20)
				default:
					w.WriteHeader(http.StatusAccepted)
				}
			}))
			s := openStore(t, store.Config{Repository: strings.TrimPrefix(outer, "http://") + "/p/uid1", PlainHTTP: true,
				DockerConfig: t.TempDir()})
			store.SetBound(s, bound)
			ctx, cancel := context.WithTimeout(t.Context(), 40*bound)
			defer cancel()
			begun := time.Now()
			err := test.call(ctx, store.Once(s))
			if took := time.Since(begun); ctx.Err() != nil || took < bound {
				t.Errorf("%v after %v", err, took)
			}
			if test.status == http.StatusOK && !errdefs.IsUnavailable(err) {
				t.Errorf("class of %v", err)
			}
		})
	}
	t.Run("all pages of tags", func(t *testing.T) {
		t.Parallel()
		n := 0
		s, _ := listing(t, func(w http.ResponseWriter, _ *http.Request, _ int64) {
			n++
			w.Header().Set("Link", fmt.Sprintf(`</v2/p/uid1/tags/list?last=%d>; rel="next"`, n))
			_, _ = w.Write([]byte(`{"tags":["a"]}`))
			time.Sleep(bound / 2)
		})
		store.SetBound(store.Retry(s), bound)
		begun := time.Now()
		if tags, err := s.Tags(t.Context()); err == nil || tags != nil || time.Since(begun) > 40*bound {
			t.Errorf("%q, %v after %v", tags, err, time.Since(begun))
		}
	})
	t.Run("a slow blob", func(t *testing.T) {
		t.Parallel()
		r := storetest.Start(t, &storetest.Registry{})
		s := openStore(t, r.Config(t, "p/uid1"))
		if err := s.Put(t.Context(), store.Blob(a.Digest), a); err != nil {
			t.Fatal(err)
		}
		r.Change(func() { r.Slow = bound / 8 }) // in 16 pieces
		store.SetBound(s, bound)
		got, err := store.ReadBlob(t.Context(), s, digest.FromBytes(data), a.Size)
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	})
}
