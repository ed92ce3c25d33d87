package store_test

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"godwit.dev/godwit/snapshot/store"
	"godwit.dev/godwit/snapshot/store/storetest"
)

// noise is a blob that is asked for before it is sent.
func noise(n int) ([]byte, store.Content) {
	data := make([]byte, n)
	rng := rand.New(rand.NewPCG(1, uint64(n)))
	for i := range data {
		data[i] = byte(rng.Uint32())
	}
	return data, store.Bytes(data, digest.FromBytes(data))
}

func openStore(t *testing.T, cfg store.Config) store.Store {
	t.Helper()
	st, err := store.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func manifestOf(blobs ...store.Content) store.Content {
	layers := make([]string, len(blobs))
	for i, b := range blobs {
		layers[i] = fmt.Sprintf(`{"mediaType":"application/octet-stream","digest":"%s","size":%d}`, b.Digest, b.Size)
	}
	text := fmt.Sprintf(`{"schemaVersion":2,"mediaType":"%s","config":%s,"layers":[%s]}`, v1.MediaTypeImageManifest,
		layers[0], strings.Join(layers, ","))
	c := store.Bytes([]byte(text), digest.FromString(text))
	c.MediaType = v1.MediaTypeImageManifest
	return c
}

// move pushes packs and a manifest, and reads them back.
func move(ctx context.Context, st store.Store, packs ...store.Content) error {
	for _, p := range packs {
		if err := st.Put(ctx, store.Blob(p.Digest), p); err != nil {
			return err
		}
	}
	if err := st.Put(ctx, store.Manifest("t"), manifestOf(packs...)); err != nil {
		return err
	}
	for _, p := range packs {
		if _, err := store.ReadBlob(ctx, st, p.Digest, p.Size); err != nil {
			return err
		}
	}
	return nil
}

// A token that runs out at any request of a long push is fetched again. The body of the request
// that found it out is sent again, whole. No blob is sent twice.
func TestTokenRunsOut(t *testing.T) {
	for _, uses := range []int{1, 2, 3} {
		r := storetest.Start(t, &storetest.Registry{Token: uses})
		_, a := noise(2 << 20)
		_, b := noise(1<<20 + 1)
		if err := move(t.Context(), openStore(t, r.Config(t, "p/uid1")), a, b); err != nil {
			t.Fatalf("a token is good for %d requests: %v", uses, err)
		}
		if r.Tokens() < 3 {
			t.Errorf("a token is good for %d requests: %d tokens", uses, r.Tokens())
		}
		if n := storetest.Count(r.Take(), "POST"); n > 4 {
			t.Errorf("a token is good for %d requests: %d uploads begun for 2 blobs", uses, n)
		}
	}
}

// A token server that refuses is terminal, and the password is in no error.
func TestTokenIsRefused(t *testing.T) {
	r := storetest.Start(t, &storetest.Registry{Token: 100})
	cfg := r.Config(t, "p/uid1")
	cfg.DockerConfig = t.TempDir()
	_, a := noise(10)
	err := move(t.Context(), openStore(t, cfg), a)
	if !errdefs.IsUnauthorized(err) || strings.Contains(err.Error(), storetest.Password) {
		t.Errorf("no credentials: %v", err)
	}
}

// A download that is redirected to another host takes no credentials there, also when that
// host asks for some.
func TestRedirectKeepsCredentials(t *testing.T) {
	for _, stage := range []string{"download", "range"} {
		blobs := storetest.Start(t, &storetest.Registry{})
		r := storetest.Start(t, &storetest.Registry{Token: 1000, Redirect: blobs.URL})
		data, a := noise(1 << 20)
		st := openStore(t, r.Config(t, "p/uid1"))
		other := openStore(t, blobs.Config(t, "p/uid1"))
		for _, s := range []store.Store{st, other} {
			if err := s.Put(t.Context(), store.Blob(a.Digest), a); err != nil {
				t.Fatal(err)
			}
		}
		blobs.Take()
		got, err := store.ReadBlob(t.Context(), st, a.Digest, a.Size)
		if stage == "range" {
			body, e := st.(store.Ranger).GetRange(t.Context(), a.Digest, 5, 10)
			if err = e; err == nil {
				defer body.Close()
				var b bytes.Buffer
				_, err = b.ReadFrom(body)
				got = append(append(data[:5:5], b.Bytes()...), data[15:]...)
			}
		}
		if err != nil || !bytes.Equal(got, data) {
			t.Fatalf("%s: %d bytes, %v", stage, len(got), err)
		}
		seen := blobs.Take()
		if len(seen) == 0 {
			t.Fatal("the other host was not asked")
		}
		for _, q := range seen {
			if q.Header.Get("Authorization") != "" {
				t.Errorf("%s: credentials went to the other host: %v", stage, q.Header)
			}
		}
	}
}

// The outcome of each failure at each request: what may pass is tried again and succeeds,
// what will not is terminal, at once and with its class.
func TestEachFailureAtEachRequest(t *testing.T) {
	_, a := noise(1<<20 + 5)
	whole := storetest.Start(t, &storetest.Registry{})
	if err := move(t.Context(), openStore(t, whole.Config(t, "p/uid1")), a); err != nil {
		t.Fatal(err)
	}
	requests := whole.Take()
	tests := []struct {
		name  string
		fault storetest.Fault
		class error // nil: it passes
	}{
		{"403", storetest.Fault{Status: 403}, errdefs.ErrPermissionDenied},
		{"413", storetest.Fault{Status: 413}, errdefs.ErrResourceExhausted},
		{"429", storetest.Fault{Status: 429}, nil},
		{"500", storetest.Fault{Status: 500}, nil},
		{"503", storetest.Fault{Status: 503, Header: http.Header{"Retry-After": {"0"}}}, nil},
		{"reset before the body", storetest.Fault{Up: 1, Down: 1}, nil},
		{"reset in the body", storetest.Fault{Up: 1 << 19, Down: 1 << 19}, nil},
		{"reset after the body", storetest.Fault{Up: 1<<20 + 5, Down: 1<<20 + 5}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for n := 1; n <= len(requests); n++ {
				r := storetest.Start(t, &storetest.Registry{Script: func(i int, _ *http.Request) storetest.Fault {
					if i == n {
						return tt.fault
					}
					return storetest.Fault{}
				}})
				err := move(t.Context(), store.RetryAfter(openStore(t, r.Config(t, "p/uid1")), time.Millisecond), a)
				want := tt.class
				if !errors.Is(err, want) {
					t.Errorf("request %d, %s %s: %v, want %v", n, requests[n-1].Method, requests[n-1].Path, err, want)
				}
				if seen := len(r.Take()); want != nil && seen != n {
					t.Errorf("request %d, %s: %d requests after a refusal", n, requests[n-1].Method, seen-n)
				}
			}
		})
	}
}

// A download that is cut at any byte goes on where it was; only the rest is fetched.
func TestDownloadGoesOn(t *testing.T) {
	data, a := noise(100_000)
	for _, at := range []int64{1, 2, 4096, 65537, 99_999, 100_000} {
		r := storetest.Start(t, &storetest.Registry{})
		st := openStore(t, r.Config(t, "p/uid1"))
		if err := st.Put(t.Context(), store.Blob(a.Digest), a); err != nil {
			t.Fatal(err)
		}
		r.Take()
		r.Play(func(n int, _ *http.Request) storetest.Fault {
			if n == 1 {
				return storetest.Fault{Down: at}
			}
			return storetest.Fault{}
		})
		got, err := store.ReadBlob(t.Context(), st, a.Digest, a.Size)
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("cut at %d: %d bytes, %v", at, len(got), err)
		}
		seen := r.Take()
		want := fmt.Sprintf("bytes=%d-%d", at-1, a.Size-1)
		if last := seen[len(seen)-1].Header.Get("Range"); at > 1 && last != want {
			t.Errorf("cut at %d: asked for %q, want %q", at, last, want)
		}
	}
}

// A registry without ranges is found out by its first answer, and not asked again.
func TestNoRange(t *testing.T) {
	_, a := noise(1000)
	r := storetest.Start(t, &storetest.Registry{NoRange: true})
	st := openStore(t, r.Config(t, "p/uid1"))
	if err := st.Put(t.Context(), store.Blob(a.Digest), a); err != nil {
		t.Fatal(err)
	}
	r.Take()
	for range 3 {
		if _, err := st.(store.Ranger).GetRange(t.Context(), a.Digest, 10, 5); !errdefs.IsNotImplemented(err) {
			t.Errorf("a range of a registry that has none: %v", err)
		}
	}
	if n := len(r.Take()); n != 1 {
		t.Errorf("it was asked %d times", n)
	}
	// A body that breaks off cannot be taken up: that is an error which passes.
	r.Play(func(n int, _ *http.Request) storetest.Fault {
		if n == 1 {
			return storetest.Fault{Down: 500}
		}
		return storetest.Fault{}
	})
	if _, err := store.ReadBlob(t.Context(), st, a.Digest, a.Size); !errdefs.IsUnavailable(err) {
		t.Errorf("cut without ranges: %v", err)
	}
}

// What an earlier attempt has pushed is not pushed again.
func TestSecondAttemptSendsTheRest(t *testing.T) {
	r := storetest.Start(t, &storetest.Registry{})
	_, a := noise(2 << 20)
	_, b := noise(3 << 20)
	if err := openStore(t, r.Config(t, "p/uid1")).Put(t.Context(), store.Blob(a.Digest), a); err != nil {
		t.Fatal(err)
	}
	r.Take()
	if err := move(t.Context(), openStore(t, r.Config(t, "p/uid1")), a, b); err != nil {
		t.Fatal(err)
	}
	var up int64
	for _, q := range r.Take() {
		if strings.Contains(q.Path, "/blobs/") {
			up += q.Up
		}
	}
	if up != b.Size {
		t.Errorf("%d bytes of blobs sent, want %d", up, b.Size)
	}
}

// Retry-After counts more than the own pauses, within a bound.
func TestRetryAfter(t *testing.T) {
	for value, want := range map[string][2]time.Duration{
		"7": {7 * time.Second, 8 * time.Second}, "86400": {time.Minute, 61 * time.Second}, "soon": {0, time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			calls := 0
			start := time.Now()
			st := store.RetryAfter(failing(func() error {
				if calls++; calls > 1 {
					return nil
				}
				return store.StatusOf(429, value)
			}), 500*time.Millisecond)
			if _, err := st.Tags(t.Context()); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(start); took < want[0] || took > want[1] {
				t.Errorf("Retry-After %s: waited %v, want %v", value, took, want)
			}
		})
	}
}

type failing func() error

func (failing) Stat(context.Context, store.Object) (store.Info, error)   { return store.Info{}, nil }
func (failing) Get(context.Context, store.Object) (io.ReadCloser, error) { return nil, nil }
func (failing) Put(context.Context, store.Object, store.Content) error   { return nil }
func (failing) Delete(context.Context, string) error                     { return nil }
func (f failing) Tags(context.Context) ([]string, error)                 { return nil, f() }

// An upload whose session lies on another host sends its bytes there, and no credentials.
func TestUploadElsewhere(t *testing.T) {
	data, a := noise(1 << 10)
	var got []byte
	var auth string
	other := storetest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		auth = q.Header.Get("Authorization")
		got, _ = io.ReadAll(q.Body)
		w.WriteHeader(http.StatusCreated)
	}))
	r := storetest.Start(t, &storetest.Registry{Token: 1000, Script: func(_ int, q *http.Request) storetest.Fault {
		if q.Method == http.MethodPost && q.Header.Get("Authorization") != "" {
			return storetest.Fault{Status: http.StatusAccepted, Header: http.Header{"Location": {other + "/session?x=1"}}}
		}
		return storetest.Fault{}
	}})
	if err := openStore(t, r.Config(t, "p/uid1")).Put(t.Context(), store.Blob(a.Digest), a); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, data) || auth != "" {
		t.Errorf("%d bytes, Authorization %q", len(got), auth)
	}
}

// A registry over HTTPS that sends a download to a host without TLS is not followed.
func TestRedirectWithoutTLS(t *testing.T) {
	asked := false
	other := storetest.Serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
	_, a := noise(1 << 10)
	r := storetest.Start(t, &storetest.Registry{})
	s := httptest.NewTLSServer(r)
	defer s.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}),
		0o600); err != nil {
		t.Fatal(err)
	}
	st := openStore(t, store.Config{Repository: strings.TrimPrefix(s.URL, "https://") + "/p/uid1", CAFile: ca,
		DockerConfig: t.TempDir()})
	if err := st.Put(t.Context(), store.Blob(a.Digest), a); err != nil {
		t.Fatal(err)
	}
	r.Change(func() { r.Redirect = other })
	if _, err := store.ReadBlob(t.Context(), st, a.Digest, a.Size); !errdefs.IsFailedPrecondition(err) || asked {
		t.Errorf("%v, the other host was asked: %v", err, asked)
	}
}
