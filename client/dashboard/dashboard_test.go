package dashboard

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
)

// page is a daemon's page on a socket; it tells the headers that it was asked with.
func page(t *testing.T) (socket string, asked <-chan http.Header) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "d.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan http.Header, 64)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header
		_, _ = io.WriteString(w, "page of "+r.URL.Path)
		for r.URL.Path == "/flood" && r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
		if r.URL.Path == "/events" {
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}
	}))
	_ = server.Listener.Close()
	server.Listener = l
	server.Start()
	t.Cleanup(server.Close)
	return socket, got
}

var address = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7777}

// ask makes one request; edit changes it.
func ask(t *testing.T, p *Proxy, target string, edit func(*http.Request)) *http.Response {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, target, nil)
	if edit != nil {
		edit(r)
	}
	w := httptest.NewRecorder()
	p.ServeHTTP(w, r)
	return w.Result()
}

func text(t *testing.T, resp *http.Response) string {
	t.Helper()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// enter opens the URL and answers the cookie and the address without the token.
func enter(t *testing.T, p *Proxy, open string) (*http.Cookie, string) {
	t.Helper()
	resp := ask(t, p, open, nil)
	if resp.StatusCode != http.StatusSeeOther || len(resp.Cookies()) != 1 {
		t.Fatalf("the URL answers %s with %d cookies", resp.Status, len(resp.Cookies()))
	}
	return resp.Cookies()[0], "http://" + address.String() + resp.Header.Get("Location")
}

// The token opens the page once; the cookie does from then on, and never reaches the daemon.
func TestToken(t *testing.T) {
	socket, asked := page(t)
	p, open := New(socket, address)
	cookie, clean := enter(t, p, open)
	if !cookie.HttpOnly || cookie.SameSite != http.SameSiteStrictMode || cookie.Path == "/" || cookie.Path == "" {
		t.Errorf("cookie %v", cookie)
	}
	if strings.Contains(clean, "token") || strings.Contains(open, cookie.Value) {
		t.Errorf("the address is %s after %s", clean, open)
	}
	resp := ask(t, p, clean, func(r *http.Request) { r.AddCookie(cookie) })
	if got := text(t, resp); resp.StatusCode != http.StatusOK || got != "page of /" ||
		resp.Header.Get("Referrer-Policy") != "no-referrer" {
		t.Errorf("with the cookie: %s %q", resp.Status, got)
	}
	if h := <-asked; h.Get("Cookie") != "" {
		t.Errorf("the daemon got the cookie %q", h.Get("Cookie"))
	}
	if resp := ask(t, p, open, nil); resp.StatusCode != http.StatusForbidden ||
		!strings.Contains(text(t, resp), "used before") {
		t.Errorf("the token works a second time: %s", resp.Status)
	}
	resp = ask(t, p, open, func(r *http.Request) { r.AddCookie(cookie) })
	if resp.StatusCode != http.StatusSeeOther {
		t.Errorf("the first URL, loaded again by the same browser: %s", resp.Status)
	}
}

// Who has no token, a wrong one, or a wrong cookie gets a page that says what to do, and nothing of the daemon.
func TestStrangers(t *testing.T) {
	socket, asked := page(t)
	p, open := New(socket, address)
	base, _, _ := strings.Cut(open, "?")
	name := p.cookie
	for what, r := range map[string]struct{ url, cookie string }{
		"no token":        {base, ""},
		"another path":    {"http://127.0.0.1:7777/", ""},
		"path above":      {base + "../", ""},
		"wrong token":     {base + "?token=" + strings.Repeat("0", 64), ""},
		"empty token":     {base + "?token=", ""},
		"wrong cookie":    {base, strings.Repeat("0", 64)},
		"token elsewhere": {base + "events?" + strings.SplitN(open, "?", 2)[1], ""},
	} {
		resp := ask(t, p, r.url, func(req *http.Request) {
			if r.cookie != "" {
				req.AddCookie(&http.Cookie{Name: name, Value: r.cookie})
			}
		})
		if got := text(t, resp); resp.StatusCode != http.StatusForbidden || !strings.Contains(got, "godwit dashboard") ||
			len(resp.Cookies()) > 0 {
			t.Errorf("%s: %s %q", what, resp.Status, got)
		}
	}
	if len(asked) > 0 {
		t.Error("the daemon was asked")
	}
	enter(t, p, open) // none of them has used the token up
}

// A name that points here, another port, and a page of another site are refused, even with the cookie.
func TestOtherSites(t *testing.T) {
	socket, asked := page(t)
	p, open := New(socket, address)
	cookie, clean := enter(t, p, open)
	for what, edit := range map[string]func(*http.Request){
		"rebound name": func(r *http.Request) { r.Host = "evil.example:7777" },
		"no port":      func(r *http.Request) { r.Host = "127.0.0.1" },
		"another port": func(r *http.Request) { r.Host = "127.0.0.1:7778" },
		"origin":       func(r *http.Request) { r.Header.Set("Origin", "http://evil.example") },
		"origin null":  func(r *http.Request) { r.Header.Set("Origin", "null") },
		"own origin of another port": func(r *http.Request) {
			r.Header.Set("Origin", "http://127.0.0.1:7778")
		},
		"fetch of another site": func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") },
		"fetch of another port": func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-site") },
	} {
		resp := ask(t, p, clean, func(r *http.Request) { r.AddCookie(cookie); edit(r) })
		if resp.StatusCode != http.StatusForbidden {
			t.Errorf("%s: %s", what, resp.Status)
		}
	}
	if len(asked) > 0 {
		t.Error("the daemon was asked")
	}
	for _, method := range []string{http.MethodPost, http.MethodDelete, http.MethodPut, http.MethodOptions} {
		resp := ask(t, p, clean, func(r *http.Request) { r.AddCookie(cookie); r.Method = method })
		if resp.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("%s: %s", method, resp.Status)
		}
	}
	resp := ask(t, p, clean, func(r *http.Request) {
		r.AddCookie(cookie)
		r.Header.Set("Origin", "http://127.0.0.1:7777")
	})
	if resp.StatusCode != http.StatusOK {
		t.Errorf("its own origin: %s", resp.Status)
	}
}

// A daemon that is away is said to be away, on a page that tries again by itself.
func TestAway(t *testing.T) {
	p, open := New(filepath.Join(t.TempDir(), "none.sock"), address)
	cookie, clean := enter(t, p, open)
	resp := ask(t, p, clean, func(r *http.Request) { r.AddCookie(cookie) })
	if got := text(t, resp); resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Refresh") == "" ||
		!strings.Contains(got, "does not answer") || strings.Contains(got, "no VMs") {
		t.Errorf("%s %q", resp.Status, got)
	}
}

// Only so many requests are served at once.
func TestBound(t *testing.T) {
	socket, _ := page(t)
	p, open := New(socket, address)
	for range maxRequests {
		p.requests <- struct{}{}
	}
	if resp := ask(t, p, open, nil); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("one too many: %s", resp.Status)
	}
	<-p.requests
	enter(t, p, open)
}

// A browser that opens a stream and never reads it loses its place to others.
func TestNeverRead(t *testing.T) {
	socket, _ := page(t)
	l, err := Listen(t.Context(), "127.0.0.1:0", false)
	if err != nil {
		t.Fatal(err)
	}
	p, open := New(socket, l.Addr())
	p.send = 50 * time.Millisecond
	go func() { _ = p.Serve(t.Context(), l) }()
	cookie, clean := enter(t, p, open)
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, clean+"flood", nil)
	req.Host = l.Addr().String()
	req.AddCookie(cookie)
	if err := req.Write(conn); err != nil {
		t.Fatal(err)
	}
	for len(p.requests) == 0 {
		time.Sleep(time.Millisecond)
	}
	for len(p.requests) > 0 { // the test's own timeout ends what holds its place for ever
		time.Sleep(time.Millisecond)
	}
}

// An address that other hosts reach is refused by its name, unless the flag allows it.
func TestListen(t *testing.T) {
	for _, bad := range []string{"0.0.0.0:0", "[::]:0", ":0", "192.0.2.1:80", "host.example:80", "127.0.0.1", ""} {
		l, err := Listen(t.Context(), bad, false)
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), bad) {
			t.Errorf("%q: %v", bad, err)
		}
		if l != nil {
			l.Close()
		}
	}
	for good, anywhere := range map[string]bool{"127.0.0.1:0": false, "localhost:0": false, "0.0.0.0:0": true} {
		l, err := Listen(t.Context(), good, anywhere)
		if err != nil {
			t.Errorf("%s: %v", good, err)
			continue
		}
		l.Close()
	}
}

// When the command ends, so do its streams.
func TestEnd(t *testing.T) {
	socket, asked := page(t)
	l, err := Listen(t.Context(), "127.0.0.1:0", false)
	if err != nil {
		t.Fatal(err)
	}
	p, open := New(socket, l.Addr())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Serve(ctx, l) }()
	jar := cookies{}
	client := &http.Client{Jar: &jar}
	resp, err := client.Get(open)
	if err != nil {
		t.Fatal(err)
	}
	if got := text(t, resp); got != "page of /" {
		t.Fatalf("the URL shows %q", got)
	}
	resp, err = client.Get(resp.Request.URL.JoinPath("events").String())
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	<-asked
	<-asked
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Serve: %v", err)
	}
	if _, err := io.ReadAll(resp.Body); err == nil {
		t.Error("the stream ended as if it were whole")
	}
}

// cookies is a browser's jar for one site.
type cookies []*http.Cookie

func (c *cookies) SetCookies(_ *url.URL, set []*http.Cookie) { *c = append(*c, set...) }
func (c *cookies) Cookies(*url.URL) []*http.Cookie           { return *c }
