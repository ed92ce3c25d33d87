// Package dashboard brings the page of a godwitd, which is on a unix socket, to a browser of the same host. Other
// users of the host and other pages in the browser get nothing: a token that works once becomes a cookie.
package dashboard

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
)

// Bounds of what a browser may leave open.
const (
	maxRequests = 64
	headTimeout = 5 * time.Second
	pageTimeout = 15 * time.Second
	idleTimeout = 2 * time.Minute
	sendTimeout = 15 * time.Second // for what a browser does not read
	maxHead     = 32 << 10
)

// Proxy serves the page of one godwitd on one address.
type Proxy struct {
	Address net.Addr // where it is served

	path    string // "/RANDOM/": the cookie is for this path alone, as other ports of the host get cookies too
	cookie  string // name
	session [sha256.Size]byte
	secret  string

	mu    sync.Mutex
	token *[sha256.Size]byte // nil: it was used

	next     http.Handler
	requests chan struct{}
	send     time.Duration // sendTimeout
}

// New makes a proxy to the page on a socket, served at an address. The URL that it answers opens the page once.
func New(socket string, address net.Addr) (*Proxy, string) {
	token, secret, path := random(), random(), random()[:16]
	hash := sha256.Sum256([]byte(token))
	p := &Proxy{Address: address, path: "/" + path + "/", cookie: "godwit-" + path, secret: secret,
		session: sha256.Sum256([]byte(secret)), token: &hash, requests: make(chan struct{}, maxRequests), send: sendTimeout}
	dialer := new(net.Dialer)
	p.next = http.StripPrefix(strings.TrimSuffix(p.path, "/"), &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: "godwitd"})
			r.Out.Host = "godwitd"
			r.Out.Header.Del("Cookie")
		},
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return dialer.DialContext(ctx, "unix", socket)
			},
			DisableCompression: true, ResponseHeaderTimeout: pageTimeout,
		},
		ErrorHandler: away,
	})
	return p, (&url.URL{Scheme: "http", Host: address.String(), Path: p.path, RawQuery: "token=" + token}).String()
}

// random is a secret of 256 bits in hexadecimal digits.
func random() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // it never fails
	return hex.EncodeToString(b[:])
}

// ServeHTTP implements http.Handler.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Referrer-Policy", "no-referrer")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	select {
	case p.requests <- struct{}{}:
		defer func() { <-p.requests }()
	default:
		w.Header().Set("Retry-After", "5")
		say(w, http.StatusServiceUnavailable, "Too many pages are open. Close some, then load this one again.")
		return
	}
	switch {
	case !p.ours(r):
		say(w, http.StatusForbidden, "This address is of another site. Open the URL that godwit dashboard has printed.")
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD")
		say(w, http.StatusMethodNotAllowed, "The dashboard only reads.")
	case !strings.HasPrefix(r.URL.Path, p.path):
		say(w, http.StatusForbidden, stranger)
	case r.URL.Path == p.path && r.URL.Query().Has("token"):
		p.enter(w, r)
	case !p.known(r):
		say(w, http.StatusForbidden, stranger)
	default:
		p.next.ServeHTTP(&reader{w, p.send}, r)
	}
}

// reader is a browser that has to read: what it leaves unread for too long ends its request.
type reader struct {
	http.ResponseWriter
	within time.Duration
}

// Write implements http.ResponseWriter.
func (r *reader) Write(data []byte) (int, error) {
	_ = http.NewResponseController(r.ResponseWriter).SetWriteDeadline(time.Now().Add(r.within)) // a test's has none
	return r.ResponseWriter.Write(data)
}

// Unwrap gives the response controller what lies below.
func (r *reader) Unwrap() http.ResponseWriter { return r.ResponseWriter }

const stranger = "This browser has not shown the token. Run godwit dashboard and open the URL that it prints. " +
	"Such a URL works once: run godwit dashboard again for a second browser."

// enter takes the token, once, and sends the browser to the page without it in the URL.
func (p *Proxy) enter(w http.ResponseWriter, r *http.Request) {
	if !p.known(r) { // who loads the first URL again has the cookie
		if !p.use(r.URL.Query().Get("token")) {
			say(w, http.StatusForbidden, "This token is wrong, or was used before. Run godwit dashboard again "+
				"and open the URL that it prints.")
			return
		}
		http.SetCookie(w, &http.Cookie{Name: p.cookie, Value: p.secret, Path: p.path, HttpOnly: true,
			SameSite: http.SameSiteStrictMode})
	}
	w.Header().Set("Location", p.path)
	w.WriteHeader(http.StatusSeeOther)
}

// use tells whether the token is right and was not used before.
func (p *Proxy) use(token string) bool {
	given := sha256.Sum256([]byte(token))
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.token == nil || subtle.ConstantTimeCompare(given[:], p.token[:]) != 1 {
		return false
	}
	p.token = nil
	return true
}

// known tells whether a browser has the cookie.
func (p *Proxy) known(r *http.Request) bool {
	cookie, err := r.Cookie(p.cookie)
	if err != nil {
		return false
	}
	given := sha256.Sum256([]byte(cookie.Value))
	return subtle.ConstantTimeCompare(given[:], p.session[:]) == 1
}

// ours tells whether a request is for this address by its own name. A name that somebody has made point here (DNS
// rebinding) is none, and no other site's page may ask.
func (p *Proxy) ours(r *http.Request) bool {
	host, port, err := net.SplitHostPort(r.Host)
	_, own, _ := net.SplitHostPort(p.Address.String())
	if err != nil || port != own || host != "localhost" && net.ParseIP(host) == nil {
		return false
	}
	if origin := r.Header.Get("Origin"); origin != "" && origin != "http://"+r.Host {
		return false
	}
	site := r.Header.Get("Sec-Fetch-Site")
	return site == "" || site == "same-origin" || site == "none" || r.Header.Get("Sec-Fetch-Mode") == "navigate"
}

// away answers for a godwitd that does not.
func away(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	w.Header().Set("Refresh", "3")
	say(w, http.StatusServiceUnavailable, "The godwitd of this node does not answer, so nothing is known of its VMs. "+
		"They run on without it. This page tries again by itself. See the log of godwitd, or run godwit doctor.")
}

// say writes a page of one paragraph.
func say(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	w.WriteHeader(code)
	_, _ = fmt.Fprintf(w, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "+
		"content=\"width=device-width\"><meta name=\"color-scheme\" content=\"light dark\"><title>godwit dashboard</title>"+
		"</head><body><h1>godwit dashboard</h1><p>%s</p></body></html>\n", text)
}

// Listen on an address. Without anywhere only a loopback address is taken.
func Listen(ctx context.Context, address string, anywhere bool) (net.Listener, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("--address %s: write HOST:PORT, as 127.0.0.1:0: %w", address, errdefs.ErrInvalidArgument)
	}
	if host == "localhost" {
		host = "127.0.0.1"
	}
	ip := net.ParseIP(host)
	switch {
	case ip == nil:
		return nil, fmt.Errorf("--address %s: write an IP address, as 127.0.0.1:0: %w", address,
			errdefs.ErrInvalidArgument)
	case !ip.IsLoopback() && !anywhere:
		return nil, fmt.Errorf("--address %s: other hosts could reach it, and nothing is encrypted. Use 127.0.0.1:0 and a "+
			"tunnel of ssh, or add --allow-remote: %w", address, errdefs.ErrInvalidArgument)
	}
	return new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(host, port))
}

// Serve until ctx ends; streams end then too.
func (p *Proxy) Serve(ctx context.Context, l net.Listener) error {
	server := &http.Server{Handler: p, ReadHeaderTimeout: headTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHead}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
