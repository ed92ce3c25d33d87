package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// host is one place where a repository can be reached.
type host struct {
	endpoint
	repo   name.Repository
	base   http.RoundTripper
	auth   authn.Authenticator
	client chan *http.Client // one slot: nil until the host has been asked how it authenticates
	stall  time.Duration     // that a transfer may move no byte
	bound  time.Duration     // of a call that transfers no blob

	mirror bool         // of a registry that is asked after it
	down   atomic.Int64 // Unix nanoseconds until which a mirror is not asked
}

// stall is how long a transfer may move no byte.
const stall = time.Minute

// callBound is how long a call may take that transfers no blob, its answer included. A byte from time to time keeps a
// transfer going; it must not keep such a call.
const callBound = 2 * time.Minute

// mirrorRest is how long a mirror that did not answer is left alone: its timeout must
// not be paid for each pack.
const mirrorRest = 30 * time.Second

func newHost(cfg Config, e endpoint, repo name.Repository) (*host, error) {
	base, err := newTransport(cfg, e)
	if err != nil {
		return nil, err
	}
	var opts []name.Option
	if e.plain() {
		opts = append(opts, name.Insecure)
	}
	own, err := name.NewRepository(e.host+"/"+repo.RepositoryStr(), opts...)
	if err != nil {
		return nil, fmt.Errorf("registry host %q: %w", e.host, err)
	}
	var auth authn.Authenticator
	// By http, where the configuration wants TLS, everybody on the way would read it.
	if cfg.Login != nil && own.RegistryStr() == repo.RegistryStr() && (cfg.PlainHTTP || !e.plain()) {
		auth = cfg.Login.authenticator()
	} else if auth, err = credentials(cfg.DockerConfig, own); err != nil {
		return nil, err
	}
	h := &host{endpoint: e, repo: own, base: base, auth: auth, client: make(chan *http.Client, 1), stall: stall,
		bound: callBound}
	h.client <- nil
	return h, nil
}

func (h *host) rest()         { h.down.Store(time.Now().Add(mirrorRest).UnixNano()) }
func (h *host) resting() bool { return time.Now().UnixNano() < h.down.Load() }

// reject has a mirror rest that has sent something else than it was asked for.
func (h *host) reject() bool {
	if h.mirror {
		h.rest()
	}
	return h.mirror
}

// connect asks the host once how it authenticates.
func (h *host) connect(ctx context.Context) (*http.Client, error) {
	var c *http.Client
	select {
	case c = <-h.client:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { h.client <- c }()
	if c != nil {
		return c, nil
	}
	ctx, cancel := context.WithTimeout(ctx, greetBound)
	defer cancel()
	t, err := transport.NewWithContext(ctx, h.repo.Registry, h.auth, h.base, []string{h.repo.Scope(transport.PushScope)})
	if err != nil {
		return nil, err
	}
	c = &http.Client{Transport: t}
	return c, nil
}

// call is one request to the repository.
type call struct {
	verb   string // for errors
	object Object
	method string
	url    string // relative to the repository, or absolute
	header http.Header
	open   func() (io.ReadCloser, error) // of the body; nil: none
	size   int64                         // of the body
}

// transfers reports whether the call's bytes, or those of its answer, are a blob.
func (c call) transfers() bool {
	return !c.object.Manifest && (c.open != nil || c.method == http.MethodGet)
}

// do sends a call and answers 2xx responses; anything else is an error with its class.
func (h *host) do(ctx context.Context, limit *limiter, c call) (*http.Response, error) {
	client, err := h.connect(ctx)
	if err != nil {
		return nil, h.callError(ctx, c, err)
	}
	tctx, cancel := context.WithCancelCause(ctx)
	w := &watchdog{stall: h.stall, cancel: cancel, limit: limit}
	w.timer = time.AfterFunc(h.stall, func() { cancel(errStalled) })
	if !c.transfers() {
		w.within(h.bound)
	}
	req, err := h.request(tctx, c, w)
	if err != nil {
		w.stop()
		return nil, h.callError(ctx, c, err)
	}
	resp, err := client.Do(req)
	if err != nil {
		cause := context.Cause(tctx)
		w.stop()
		if cause != nil {
			err = cause
		}
		return nil, h.callError(ctx, c, err)
	}
	resp.Body = &watchedBody{ReadCloser: resp.Body, ctx: tctx, dog: w, last: true}
	if c.open != nil || resp.StatusCode/100 != 2 { // what is still to come is no blob
		w.within(h.bound)
	}
	if resp.StatusCode/100 != 2 {
		defer resp.Body.Close()
		return nil, h.callError(ctx, c, newStatus(resp))
	}
	return resp, nil
}

// request has a body that can be sent again: a token that has run out and a redirect ask
// for that.
func (h *host) request(ctx context.Context, c call, w *watchdog) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, c.method, h.address(c.url, h.repo.RepositoryStr()), nil)
	if err != nil {
		return nil, err
	}
	for k, v := range c.header {
		req.Header[k] = v
	}
	if c.open == nil {
		return req, nil
	}
	req.ContentLength = c.size
	req.GetBody = func() (io.ReadCloser, error) {
		return &watchedBody{ReadCloser: &lateBody{open: c.open}, ctx: ctx, dog: w}, nil
	}
	req.Body, err = req.GetBody()
	return req, err
}

// lateBody is opened by its first Read: what is never sent may be a download. The
// transport may close it while it reads.
type lateBody struct {
	open   func() (io.ReadCloser, error)
	mu     sync.Mutex
	body   io.ReadCloser
	closed bool
}

func (b *lateBody) Read(p []byte) (int, error) {
	body, err := b.opened()
	if err != nil {
		return 0, err
	}
	return body.Read(p)
}

func (b *lateBody) opened() (_ io.ReadCloser, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, fs.ErrClosed
	}
	if b.body == nil {
		b.body, err = b.open()
	}
	return b.body, err
}

func (b *lateBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	if b.body == nil {
		return nil
	}
	return b.body.Close()
}

// watchdog ends a request that hangs: that must become a retry. A slow transfer goes on.
type watchdog struct {
	stall  time.Duration
	timer  *time.Timer
	end    *time.Timer // nil: of a transfer
	cancel context.CancelCauseFunc
	limit  *limiter
}

// within ends the request after so long, whatever it moves.
func (w *watchdog) within(bound time.Duration) {
	if w.end == nil {
		w.end = time.AfterFunc(bound, func() { w.cancel(errSlow) })
	}
}

func (w *watchdog) stop() {
	w.timer.Stop()
	if w.end != nil {
		w.end.Stop()
	}
	w.cancel(nil)
}

// watchedBody feeds the watchdog and obeys the limit of bandwidth. The last body of a
// request ends it.
type watchedBody struct {
	io.ReadCloser
	ctx  context.Context // the request's
	dog  *watchdog
	last bool
}

func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(b.dog.limit.cut(p))
	if e := b.dog.limit.wait(b.ctx, n); e != nil {
		return n, e
	}
	b.dog.timer.Reset(b.dog.stall)
	if err != nil && !errors.Is(err, io.EOF) && b.ctx.Err() != nil {
		err = context.Cause(b.ctx)
	}
	return n, err
}

func (b *watchedBody) Close() error {
	if b.last {
		defer b.dog.stop()
	}
	return b.ReadCloser.Close()
}

// finish ends a call whose body says nothing, so that its connection is used again.
func finish(resp *http.Response) {
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
	resp.Body.Close()
}
