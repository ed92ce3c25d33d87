// Package storetest is a registry for tests of its clients: go-containerregistry's, in this
// process. It has the habits of real ones: tokens that run out, redirects to a blob store, no
// ranges, no deletes. It can be told to fail at request N and byte M.
package storetest

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"

	"godwit.dev/godwit/snapshot/store"
)

// Fault is what happens to a request instead of its answer. The zero value lets it pass.
type Fault struct {
	Status int // answered instead of asking the registry
	Header http.Header
	Body   string
	// Up and Down close the connection after that many bytes of the request's body, or of
	// the answer's, less one: 1 closes it before the first.
	Up, Down int64
	// Stall keeps the connection and moves nothing, where Up or Down would close it.
	Stall bool
}

// Request that was seen.
type Request struct {
	Method, Path, Query string
	Header              http.Header
	Up                  int64 // bytes of its body that were read
}

// Registry is the server. Its fields are set before the first request, or in Change.
type Registry struct {
	Token    int           // requests for which a bearer token is good; 0: no authentication
	Redirect string        // base URL that downloads of blobs are sent to
	NoRange  bool          // blobs come whole
	NoDelete int           // status that a DELETE is answered with
	Slow     time.Duration // between two pieces of a download
	Apart    bool          // a repository has the blobs that were pushed or mounted there, and no others
	NoMount  bool          // a request to mount opens an upload, as the specification allows
	Script   func(n int, r *http.Request) Fault

	URL   string
	inner http.Handler
	done  chan struct{}

	mu     sync.Mutex
	links  map[string]bool // repository@digest, where repositories are apart
	seen   []*Request
	left   int
	tokens int
}

// Start serves until the test ends.
func Start(t testing.TB, r *Registry) *Registry {
	t.Helper()
	r.inner, r.done = registry.New(registry.Logger(log.New(io.Discard, "", 0))), make(chan struct{})
	s := httptest.NewServer(r)
	r.URL = s.URL
	t.Cleanup(func() { close(r.done); s.CloseClientConnections(); s.Close() })
	return r
}

// User and Password that the token server wants.
const (
	User     = "me"
	Password = "hunter2"
)

// Config of a store in the registry.
func (r *Registry) Config(t testing.TB, repository string) store.Config {
	return store.Config{Repository: r.Host() + "/" + repository, PlainHTTP: true, DockerConfig: login(t, r.Host())}
}

// Host is host:port.
func (r *Registry) Host() string { return strings.TrimPrefix(r.URL, "http://") }

// Take returns the requests since the last call.
func (r *Registry) Take() []*Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := r.seen
	r.seen = nil
	return seen
}

// Tokens counts those handed out.
func (r *Registry) Tokens() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tokens
}

// Expire ends the token that is out.
func (r *Registry) Expire() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left = 0
}

// Change has set change fields while requests may be under way, also those that their client has
// given up: what has begun goes on as it did.
func (r *Registry) Change(set func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	set()
}

// Play changes Script.
func (r *Registry) Play(script func(n int, r *http.Request) Fault) {
	r.Change(func() { r.Script = script })
}

// Count of requests whose method and path begin so.
func Count(seen []*Request, prefix string) int {
	return len(slices.DeleteFunc(slices.Clone(seen), func(q *Request) bool {
		return !strings.HasPrefix(q.Method+" "+q.Path, prefix)
	}))
}

func (r *Registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.URL.Path == "/token" {
		r.token(w, req)
		return
	}
	r.mu.Lock()
	q := &Request{Method: req.Method, Path: req.URL.Path, Query: req.URL.RawQuery, Header: req.Header.Clone()}
	r.seen = append(r.seen, q)
	n, script := len(r.seen), r.Script
	h := habits{redirect: r.Redirect, noRange: r.NoRange, noDelete: r.NoDelete, slow: r.Slow, apart: r.Apart}
	r.mu.Unlock()
	var fault Fault
	if script != nil {
		fault = script(n, req)
	}
	req.Body = &body{ReadCloser: req.Body, registry: r, seen: q, fault: fault}
	switch {
	case fault.Stall && fault.Up > 0: // outside of the inner registry, which holds a lock while it reads
		_, _ = io.Copy(io.Discard, req.Body)
	case fault.Status != 0:
		for k, v := range fault.Header {
			w.Header()[k] = v
		}
		w.WriteHeader(fault.Status)
		_, _ = io.WriteString(w, fault.Body)
	case fault.Down > 0:
		r.serve(&answer{ResponseWriter: w, registry: r, fault: fault, slow: h.slow}, req, h)
	default:
		r.serve(&answer{ResponseWriter: w, registry: r, slow: h.slow}, req, h)
	}
}

// habits are what the fields said when a request came.
type habits struct {
	redirect string
	noRange  bool
	noDelete int
	slow     time.Duration
	apart    bool
}

func (r *Registry) serve(w http.ResponseWriter, req *http.Request, h habits) {
	if !r.authorized(req) {
		w.Header().Set("WWW-Authenticate",
			fmt.Sprintf(`Bearer realm="%s/token",service="test",scope="repository:x:pull,push"`, r.URL))
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	blob := strings.Contains(req.URL.Path, "/blobs/sha256:") &&
		(req.Method == http.MethodGet || req.Method == http.MethodHead)
	switch {
	case blob && h.redirect != "" && req.Method == http.MethodGet:
		http.Redirect(w, req, h.redirect+req.URL.Path, http.StatusTemporaryRedirect)
		return
	case req.Method == http.MethodDelete && h.noDelete != 0:
		w.WriteHeader(h.noDelete)
		_, _ = io.WriteString(w, `{"errors":[{"code":"UNSUPPORTED","message":"The operation is unsupported."}]}`)
		return
	case blob && h.noRange:
		req.Header.Del("Range")
	}
	if h.apart && r.separateRepositories(w, req, blob) {
		return
	}
	r.inner.ServeHTTP(w, req)
}

func (r *Registry) token(w http.ResponseWriter, req *http.Request) {
	user, password, _ := req.BasicAuth()
	if user != User || password != Password {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	r.mu.Lock()
	r.tokens++
	r.left = r.Token
	n := r.tokens
	r.mu.Unlock()
	fmt.Fprintf(w, `{"token":"t%d","expires_in":60}`, n)
}

// authorized takes one use of the token.
func (r *Registry) authorized(req *http.Request) bool {
	if r.Token == 0 {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left <= 0 || req.Header.Get("Authorization") != fmt.Sprintf("Bearer t%d", r.tokens) {
		return false
	}
	r.left--
	return true
}

// Serve answers with h until the test ends, and returns the base URL.
func Serve(t testing.TB, h http.Handler) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}
