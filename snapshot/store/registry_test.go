package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-containerregistry/pkg/registry"
	digest "github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// quirky is a registry that answers request N in its own way.
type quirky struct {
	inner http.Handler
	mu    sync.Mutex
	n     int
	at    int // from 1; 0: never
	do    func(w http.ResponseWriter, r *http.Request)
	seen  []string
}

func (q *quirky) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q.mu.Lock()
	q.n++
	hit := q.n == q.at
	q.seen = append(q.seen, r.Method+" "+r.URL.Path)
	q.mu.Unlock()
	if hit {
		q.do(w, r)
		return
	}
	q.inner.ServeHTTP(w, r)
}

// requests returns what was asked so far.
func (q *quirky) requests() []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.seen)
}

func answer(code int, body string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		fmt.Fprint(w, body)
	}
}

func cut(w http.ResponseWriter, _ *http.Request) {
	if c, _, err := w.(http.Hijacker).Hijack(); err == nil {
		c.Close()
	}
}

func newQuirky(t *testing.T) (*quirky, Config) {
	t.Helper()
	q := &quirky{inner: registry.New(registry.Logger(nopLog()))}
	s := httptest.NewServer(q)
	t.Cleanup(s.Close)
	return q, Config{Repository: strings.TrimPrefix(s.URL, "http://") + "/godwit/uid1", PlainHTTP: true,
		DockerConfig: t.TempDir()}
}

func bytesOf(s string) Content { return Bytes([]byte(s), digest.FromString(s)) }

func open(t *testing.T, cfg Config) Store {
	t.Helper()
	r, err := NewRegistry(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// pushAll makes the calls of a push: a blob, a question, a manifest.
func pushAll(ctx context.Context, s Store) error {
	c := bytesOf("pack")
	if err := s.Put(ctx, Blob(c.Digest), c); err != nil {
		return err
	}
	if _, err := s.Stat(ctx, Blob(c.Digest)); err != nil {
		return err
	}
	if _, err := Read(ctx, s, Blob(c.Digest), 100); err != nil {
		return err
	}
	m := bytesOf(`{"schemaVersion":2,"mediaType":"` + v1.MediaTypeImageManifest + `","config":{"digest":"` +
		c.Digest.String() + `","size":4},"layers":[]}`)
	m.MediaType = v1.MediaTypeImageManifest
	return s.Put(ctx, Manifest("t"), m)
}

// R5: each request of a push, the handshake included, fails in each way with the right class.
// Only an answer of 404 to a question is NotFound.
func TestRegistryErrorClasses(t *testing.T) {
	count, cfg := newQuirky(t)
	if err := pushAll(t.Context(), open(t, cfg)); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name  string
		do    func(http.ResponseWriter, *http.Request)
		class error
	}{
		{"401", answer(401, ""), errdefs.ErrUnauthenticated},
		{"403", answer(403, ""), errdefs.ErrPermissionDenied},
		{"403 quota", answer(403, `{"errors":[{"code":"DENIED","message":"project quota exceeded"}]}`),
			errdefs.ErrResourceExhausted},
		{"413", answer(413, ""), errdefs.ErrResourceExhausted},
		{"507", answer(507, ""), errdefs.ErrResourceExhausted},
		{"429", answer(429, ""), errdefs.ErrUnavailable},
		{"500", answer(500, ""), errdefs.ErrUnavailable},
		{"503", answer(503, ""), errdefs.ErrUnavailable},
		{"cut", cut, errdefs.ErrUnavailable},
	}
	for _, tt := range tests {
		for n := 1; n <= len(count.requests()); n++ {
			q, cfg := newQuirky(t)
			q.at, q.do = n, tt.do
			err := pushAll(t.Context(), open(t, cfg))
			what := q.requests()[n-1]
			switch {
			case n == 1 && tt.name == "401":
				continue // that is how a registry asks for credentials
			case tt.name == "403 quota" && (n == 1 || strings.HasPrefix(what, "HEAD")):
				tt.class = errdefs.ErrPermissionDenied // there is no body to read
			case tt.name == "403 quota":
				tt.class = errdefs.ErrResourceExhausted
			}
			// net/http itself repeats a question whose connection was an old one.
			again := tt.name == "cut" && err == nil && !strings.HasPrefix(what, "P")
			if !errors.Is(err, tt.class) && !again {
				t.Errorf("%s to request %d, %s: %v, want %v", tt.name, n, what, err, tt.class)
			}
		}
	}
}

// A 404 is an answer to a question and an accident of an upload.
func TestRegistryNotFound(t *testing.T) {
	_, cfg := newQuirky(t)
	s := open(t, cfg)
	if _, err := s.Stat(t.Context(), Manifest("none")); !errdefs.IsNotFound(err) {
		t.Errorf("stat: %v", err)
	}
	if err := s.Delete(t.Context(), "none"); err != nil {
		t.Errorf("delete of what is gone: %v", err)
	}
	for n, want := range map[int]error{2: errdefs.ErrFailedPrecondition, 3: errdefs.ErrUnavailable,
		6: errdefs.ErrAborted} {
		q, cfg := newQuirky(t)
		q.at, q.do = n, answer(404, "")
		if err := pushAll(t.Context(), open(t, cfg)); errdefs.Resolve(err) != want { // as it crosses the wire
			t.Errorf("404 to %s: %v, want %v", q.requests()[n-1], err, want)
		}
	}
}

// What may pass is tried again, with the whole blob.
func TestRetry(t *testing.T) {
	for n := 2; n <= 6; n++ {
		for _, do := range []func(http.ResponseWriter, *http.Request){answer(502, ""), cut,
			func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.CopyN(io.Discard, r.Body, 2)
				cut(w, r)
			}} {
			q, cfg := newQuirky(t)
			q.at, q.do = n, do
			if err := pushAll(t.Context(), &retry{store: open(t, cfg), pause: time.Millisecond}); err != nil {
				t.Errorf("request %d fails once: %v", n, err)
			}
		}
	}
	q, cfg := newQuirky(t)
	q.inner = http.HandlerFunc(answer(500, ""))
	err := pushAll(t.Context(), &retry{store: open(t, cfg), pause: time.Millisecond})
	if !errdefs.IsUnavailable(err) || len(q.requests()) != attempts {
		t.Errorf("a registry that is down: %v after %d requests", err, len(q.requests()))
	}
}

// A body that ends early or is another's is never taken for the blob.
func TestShortBody(t *testing.T) {
	for name, do := range map[string]func(http.ResponseWriter, *http.Request){
		"short": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "4")
			fmt.Fprint(w, "pa")
			cut(w, nil)
		},
		"other": answer(200, "kcap"),
		"long":  answer(200, "packs"),
	} {
		q, cfg := newQuirky(t)
		q.at, q.do = 5, do
		err := pushAll(t.Context(), open(t, cfg))
		// What is missing of a short one is fetched; nothing says that another is wrong but its digest.
		if name == "short" && err != nil || name != "short" && !errdefs.IsDataLoss(err) {
			t.Errorf("%s body: %v", name, err)
		}
	}
}

// Credentials and pages never travel without TLS unless the configuration says so.
func TestNoSilentPlainHTTP(t *testing.T) {
	q, cfg := newQuirky(t)
	cfg.PlainHTTP = false
	if err := pushAll(t.Context(), open(t, cfg)); err == nil {
		t.Error("pushed without TLS")
	}
	for _, r := range q.requests() {
		t.Errorf("request %s arrived without TLS", r)
	}
}

// Cancelling is not the registry's fault.
func TestCancel(t *testing.T) {
	q, cfg := newQuirky(t)
	ctx, cancel := context.WithCancel(t.Context())
	block := make(chan struct{})
	t.Cleanup(func() { close(block) })
	q.at, q.do = 3, func(http.ResponseWriter, *http.Request) {
		cancel()
		<-block
	}
	if err := pushAll(ctx, Retry(open(t, cfg))); !errdefs.IsCanceled(err) {
		t.Errorf("cancelled push: %v", err)
	}
}

func TestMount(t *testing.T) {
	q, cfg := newQuirky(t)
	r := open(t, cfg)
	c := bytesOf("pack")
	c.From = strings.Replace(cfg.Repository, "uid1", "golden", 1)
	var query string
	q.inner = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			query = r.URL.RawQuery
			w.WriteHeader(http.StatusCreated)
		}
	})
	if err := r.Put(t.Context(), Blob(c.Digest), c); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(query, "from=godwit%2Fgolden") || !strings.Contains(query, "mount=sha256") {
		t.Errorf("query %q", query)
	}
}

func TestLayoutKeepsWholeBlobsOnly(t *testing.T) {
	l, err := NewLayout(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string]string{"short": "pac", "other": "kcap", "long": "packs"} {
		c := bytesOf("pack")
		c.Open = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(data)), nil }
		if err := l.Put(t.Context(), Blob(c.Digest), c); !errdefs.IsDataLoss(err) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := l.Stat(t.Context(), Blob(c.Digest)); !errdefs.IsNotFound(err) {
			t.Errorf("%s: stat: %v", name, err)
		}
	}
	if _, err := l.Stat(t.Context(), Blob(digest.Digest("sha256:../../x"))); !errdefs.IsInvalidArgument(err) {
		t.Errorf("path as digest: %v", err)
	}
}

// Two pushes at once both find their tag afterwards.
func TestLayoutTagsAtOnce(t *testing.T) {
	dir := t.TempDir()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			l, err := NewLayout(dir)
			if err != nil {
				t.Error(err)
				return
			}
			c := bytesOf(fmt.Sprintf(`{"annotations":{"n":"%d"}}`, i))
			c.MediaType = v1.MediaTypeImageManifest
			if err := l.Put(t.Context(), Manifest(fmt.Sprint("t", i)), c); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	l, _ := NewLayout(dir)
	if tags, err := l.Tags(t.Context()); err != nil || len(tags) != 8 {
		t.Errorf("tags %v, %v", tags, err)
	}
}

// A blob that is there without being whole gives way to the whole one.
func TestLayoutReplacesShortBlob(t *testing.T) {
	l, err := NewLayout(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	c := bytesOf("pack")
	for range 2 {
		if err := l.Put(t.Context(), Blob(c.Digest), c); err != nil {
			t.Fatal(err)
		}
		if data, err := Read(t.Context(), l, Blob(c.Digest), 10); err != nil || string(data) != "pack" {
			t.Errorf("read: %q, %v", data, err)
		}
		if err := os.Truncate(l.blob(c.Digest), 1); err != nil {
			t.Fatal(err)
		}
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A timeout on the way is not the caller's deadline: it is tried again.
func TestTimeoutIsUnavailable(t *testing.T) {
	_, cfg := newQuirky(t)
	r, err := NewRegistry(cfg)
	if err != nil {
		t.Fatal(err)
	}
	base := r.keeps.base
	for _, cause := range []error{context.DeadlineExceeded, context.Canceled, os.ErrDeadlineExceeded} {
		r.keeps.base = roundTripper(func(req *http.Request) (*http.Response, error) {
			if req.Method == http.MethodPut {
				return nil, cause
			}
			return base.RoundTrip(req)
		})
		<-r.keeps.client
		r.keeps.client <- nil
		err := pushAll(t.Context(), r)
		if errdefs.Resolve(err) != errdefs.Resolve(errStalled) {
			t.Errorf("%v: %v, want Unavailable", cause, err)
		}
		if strings.Contains(fmt.Sprint(err), "uploads/") {
			t.Errorf("the session's address is told: %v", err)
		}
	}
	if got := errdefs.Resolve(readError(t.Context(), Blob("x"), context.Canceled)); got != errdefs.Resolve(errStalled) {
		t.Errorf("a body that stalls: %v, want Unavailable", got)
	}
}
