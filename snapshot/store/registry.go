package store

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/cli/cli/config"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// Registry is a repository of an OCI registry. Names and authentication are
// go-containerregistry's; the calls are made here, because packs are sent from memory,
// several at once, each in one request.
type Registry struct {
	repo   name.Repository
	base   http.RoundTripper
	auth   authn.Authenticator
	plain  bool
	client chan *http.Client // one slot: nil until the registry has been asked how it authenticates
}

var _ Store = (*Registry)(nil)

// NewRegistry reads the configuration and the credentials; nothing is asked of the
// registry yet.
func NewRegistry(cfg Config) (*Registry, error) {
	var opts []name.Option
	if cfg.PlainHTTP {
		opts = append(opts, name.Insecure)
	}
	repo, err := name.NewRepository(cfg.Repository, opts...)
	if err != nil {
		return nil, fmt.Errorf("registry repository %q: %w: %w", cfg.Repository, err, errdefs.ErrInvalidArgument)
	}
	base, err := newTransport(cfg)
	if err != nil {
		return nil, err
	}
	auth, err := credentials(cfg.DockerConfig, repo)
	if err != nil {
		return nil, err
	}
	r := &Registry{repo: repo, base: base, auth: auth, plain: cfg.PlainHTTP, client: make(chan *http.Client, 1)}
	r.client <- nil
	return r, nil
}

// newTransport keeps one HTTP/1.1 connection per transfer: a single HTTP/2 connection
// caps the throughput of parallel packs.
func newTransport(cfg Config) (http.RoundTripper, error) {
	t := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: 60 * time.Second,
		IdleConnTimeout:       30 * time.Second,
		MaxIdleConnsPerHost:   16,
		WriteBufferSize:       256 << 10,
		ReadBufferSize:        256 << 10,
		TLSClientConfig:       &tls.Config{MinVersion: tls.VersionTLS12},
		Protocols:             new(http.Protocols),
	}
	t.Protocols.SetHTTP1(true)
	if cfg.CAFile != "" {
		pem, err := os.ReadFile(cfg.CAFile)
		if err != nil {
			return nil, fmt.Errorf("registry ca_file: %w", err)
		}
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("registry ca_file %s: no certificate in it: %w", cfg.CAFile, errdefs.ErrInvalidArgument)
		}
		t.TLSClientConfig.RootCAs = pool
	}
	return guard{base: t, plain: cfg.PlainHTTP}, nil
}

// guard keeps credentials and pages off a connection without TLS: the library would
// fall back to one for addresses that look local.
type guard struct {
	base  http.RoundTripper
	plain bool
}

func (g guard) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme != "https" && !g.plain {
		return nil, fmt.Errorf("%s without TLS and plain_http is not set: %w", req.URL.Host, errdefs.ErrFailedPrecondition)
	}
	return g.base.RoundTrip(req)
}

// credentials looks the repository up in a docker configuration, helpers included.
func credentials(dir string, repo name.Repository) (authn.Authenticator, error) {
	if dir == "" {
		auth, err := authn.DefaultKeychain.Resolve(repo)
		if err != nil {
			return nil, fmt.Errorf("credentials of %s: %w: %w", repo, err, errdefs.ErrUnauthenticated)
		}
		return auth, nil
	}
	file, err := config.Load(dir)
	if err != nil {
		return nil, fmt.Errorf("docker_config %s: %w: %w", dir, err, errdefs.ErrInvalidArgument)
	}
	key := repo.RegistryStr()
	if key == name.DefaultRegistry {
		key = authn.DefaultAuthKey
	}
	c, err := file.GetAuthConfig(key)
	if err != nil {
		return nil, fmt.Errorf("credentials of %s: %w: %w", repo, err, errdefs.ErrUnauthenticated)
	}
	if c.Username == "" && c.Auth == "" && c.IdentityToken == "" && c.RegistryToken == "" {
		return authn.Anonymous, nil
	}
	return authn.FromConfig(authn.AuthConfig{
		Username: c.Username, Password: c.Password, Auth: c.Auth,
		IdentityToken: c.IdentityToken, RegistryToken: c.RegistryToken,
	}), nil
}

// connect asks the registry once how it authenticates.
func (r *Registry) connect(ctx context.Context) (*http.Client, error) {
	var c *http.Client
	select {
	case c = <-r.client:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { r.client <- c }()
	if c != nil {
		return c, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	t, err := transport.NewWithContext(ctx, r.repo.Registry, r.auth, r.base, []string{r.repo.Scope(transport.PushScope)})
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
	body   io.ReadCloser
	size   int64 // of the body
}

// do sends a call and answers 2xx responses; anything else is an error with its class.
func (r *Registry) do(ctx context.Context, c call) (*http.Response, error) {
	fail := func(err error) (*http.Response, error) {
		if c.body != nil {
			c.body.Close()
		}
		return nil, r.callError(ctx, c, err)
	}
	client, err := r.connect(ctx)
	if err != nil {
		return fail(err)
	}
	url := c.url
	if !strings.Contains(url, "://") {
		scheme := "https"
		if r.plain {
			scheme = "http"
		}
		url = fmt.Sprintf("%s://%s/v2/%s/%s", scheme, r.repo.RegistryStr(), r.repo.RepositoryStr(), c.url)
	}
	tctx, cancel := context.WithCancelCause(ctx)
	w := &watchdog{timer: time.AfterFunc(stall, func() { cancel(errStalled) }), cancel: cancel}
	req, err := http.NewRequestWithContext(tctx, c.method, url, nil)
	if err != nil {
		w.stop()
		return fail(err)
	}
	for k, v := range c.header {
		req.Header[k] = v
	}
	if c.body != nil {
		req.Body, req.ContentLength = &watchedBody{ReadCloser: c.body, dog: w}, c.size
	}
	resp, err := client.Do(req)
	if err != nil {
		cause := context.Cause(tctx)
		w.stop()
		if cause != nil {
			err = cause
		}
		return nil, r.callError(ctx, c, err)
	}
	resp.Body = &watchedBody{ReadCloser: resp.Body, dog: w, last: true}
	if resp.StatusCode/100 != 2 {
		defer resp.Body.Close()
		return nil, r.callError(ctx, c, newStatus(resp))
	}
	return resp, nil
}

// stall is how long a transfer may move no byte.
const stall = time.Minute

// watchdog ends a request that hangs: that must become a retry. A slow one goes on.
type watchdog struct {
	timer  *time.Timer
	cancel context.CancelCauseFunc
}

func (w *watchdog) stop() {
	w.timer.Stop()
	w.cancel(nil)
}

// watchedBody feeds the watchdog. The last body of a request ends it.
type watchedBody struct {
	io.ReadCloser
	dog  *watchdog
	last bool
}

func (b *watchedBody) Read(p []byte) (int, error) {
	b.dog.timer.Reset(stall)
	return b.ReadCloser.Read(p)
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

// resolveLocation returns the upload's address, absolute.
func resolveLocation(resp *http.Response) (*url.URL, error) {
	u, err := resp.Location()
	if err != nil {
		return nil, fmt.Errorf("upload has no location: %w: %w", err, errdefs.ErrUnavailable)
	}
	return u, nil
}
