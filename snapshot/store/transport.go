package store

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/cli/cli/config"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
)

// Bounds of a registry's connection.
const (
	greetBound  = 30 * time.Second // a registry that says how it wants to be asked, and gives a token
	dialDefault = 10 * time.Second // without a setting; of a TLS handshake always
	headerBound = time.Minute      // of an answer: some registries look at what they were sent first
	idleBound   = 30 * time.Second // of a connection that is not used
)

// newTransport keeps one HTTP/1.1 connection per transfer: a single HTTP/2 connection
// caps the throughput of parallel packs.
func newTransport(cfg Config, e endpoint) (http.RoundTripper, error) {
	dial := e.dialTimeout
	if dial <= 0 {
		dial = dialDefault
	}
	t := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: dial, KeepAlive: idleBound}).DialContext,
		TLSHandshakeTimeout:   dialDefault,
		ResponseHeaderTimeout: headerBound,
		IdleConnTimeout:       idleBound,
		MaxIdleConnsPerHost:   16,
		DisableCompression:    true, // a bound of bytes is one of what is sent
		WriteBufferSize:       256 << 10,
		ReadBufferSize:        256 << 10,
		TLSClientConfig:       &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: e.skipVerify},
		Protocols:             new(http.Protocols),
	}
	t.Protocols.SetHTTP1(true)
	files := e.cas
	if cfg.CAFile != "" {
		files = append([]string{cfg.CAFile}, files...)
	}
	if err := trust(t.TLSClientConfig, files); err != nil {
		return nil, err
	}
	for _, c := range e.clients {
		pair, err := tls.LoadX509KeyPair(c[0], c[1])
		if err != nil {
			return nil, fmt.Errorf("registry %s: client certificate: %w: %w", e.host, err, errdefs.ErrInvalidArgument)
		}
		t.TLSClientConfig.Certificates = append(t.TLSClientConfig.Certificates, pair)
	}
	return guard{base: t, endpoint: e}, nil
}

// trust adds certificates to the system's.
func trust(c *tls.Config, files []string) error {
	if len(files) == 0 {
		return nil
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	for _, file := range files {
		pem, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("registry certificates: %w", err)
		}
		if !pool.AppendCertsFromPEM(pem) {
			return fmt.Errorf("registry certificates %s: no certificate in it: %w", file, errdefs.ErrInvalidArgument)
		}
	}
	c.RootCAs = pool
	return nil
}

// guard is below authentication. It keeps credentials and pages off a connection without TLS
// (the library would fall back to one for addresses that look local). It sends a body from its
// start each time, and speaks to a host as hosts.toml says.
type guard struct {
	base http.RoundTripper
	endpoint
}

func (g guard) RoundTrip(req *http.Request) (*http.Response, error) {
	own := strings.EqualFold(req.URL.Host, g.host)
	if req.URL.Scheme != "https" && !g.plain() {
		return nil, fmt.Errorf("%s without TLS and plain_http is not set: %w", req.URL.Host, errdefs.ErrFailedPrecondition)
	}
	out := req.Clone(req.Context())
	if req.GetBody != nil {
		body, err := req.GetBody()
		if err != nil {
			return nil, err
		}
		req.Body.Close()
		out.Body = body
	}
	if own {
		g.rewrite(out)
	}
	return g.base.RoundTrip(out)
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
