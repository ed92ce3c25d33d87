//go:build integration

// Package browser tries the dashboard in a real browser, from the daemon's socket through godwit dashboard.
package browser

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientdashboard "godwit.dev/godwit/client/dashboard"
	"godwit.dev/godwit/daemon/dashboard"
	"godwit.dev/godwit/daemon/dashboard/dashboardtest"
)

// served is a daemon's page and the proxy of one user to it.
type served struct {
	url    string // opens the page once
	port   string
	silent atomic.Bool // the daemon's stream is refused
}

func serve(t *testing.T, source *dashboardtest.Source) *served {
	t.Helper()
	s := &served{}
	page := dashboard.New("a", source)
	socket := filepath.Join(t.TempDir(), "d.sock")
	daemon, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.silent.Load() && r.URL.Path == "/events" {
			http.Error(w, "away", http.StatusServiceUnavailable)
			return
		}
		page.ServeHTTP(w, r)
	}))
	_ = server.Listener.Close()
	server.Listener = daemon
	server.Start()
	t.Cleanup(server.Close)
	l, err := clientdashboard.Listen(t.Context(), "127.0.0.1:0", false)
	if err != nil {
		t.Fatal(err)
	}
	proxy, url := clientdashboard.New(socket, l.Addr())
	s.url = url
	_, s.port, _ = net.SplitHostPort(l.Addr().String())
	ended := make(chan error, 1)
	go func() { ended <- proxy.Serve(t.Context(), l) }()
	t.Cleanup(func() {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s
}

const live = `document.getElementById("link").textContent === "live"`

// The page renews itself under its own policy; a name that is HTML is text and runs nothing.
func TestDashboard(t *testing.T) {
	source := dashboardtest.Fixtures(time.Now())
	source.VMList[0].Vm.Id = `<img src=x onerror="document.title='owned'">`
	p := start(t).open(serve(t, source).url)
	p.until("document.getElementById('link')")
	p.until(live)
	if body := p.eval("document.documentElement.outerHTML"); strings.Contains(body, "<img") {
		t.Errorf("a name became an element: %s", body)
	}
	text := p.eval("document.body.innerText + document.title + location.href")
	for _, want := range []string{"<img src=x", "pass 2: 900 MiB sent", "asleep", "node c is lost", "godwit on a"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not on the page: %s", want, text)
		}
	}
	if strings.Contains(text, "token") {
		t.Errorf("the address keeps the token: %s", text)
	}
	if got := p.eval("document.cookie"); got != `""` {
		t.Errorf("a script of the page reads the cookie %s", got)
	}
	if len(p.logged) > 0 {
		t.Errorf("the browser complains: %q", p.logged)
	}
}

// A daemon that goes away after the page was loaded is shown as away, over what was known; it comes back by itself.
func TestAway(t *testing.T) {
	s := serve(t, dashboardtest.Fixtures(time.Now()))
	s.silent.Store(true)
	p := start(t).open(s.url)
	p.until(`document.getElementById("away") && !document.getElementById("away").hidden`)
	if text := p.eval("document.body.innerText"); !strings.Contains(text, "10.88.0.7/16") ||
		!strings.Contains(text, "godwitd does not answer") {
		t.Errorf("it shows %s", text)
	}
	if p.eval(`document.getElementById("live").className`) != `"stale"` {
		t.Error("what was known is not marked as old")
	}
	s.silent.Store(false)
	p.until(live)
}

// Another site in the same browser, which has the cookie, learns nothing: not by a script, a frame, a picture, nor by a
// name that it made point to this host.
func TestOtherSite(t *testing.T) {
	s := serve(t, dashboardtest.Fixtures(time.Now()))
	c := start(t, "--host-resolver-rules=MAP *.example 127.0.0.1")
	ours := c.open(s.url)
	ours.until("document.getElementById('link')")
	ours.until(live)
	base := strings.Trim(ours.eval("location.href"), `"`)
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = fmt.Fprint(w, "<!doctype html><title>theirs</title>")
	}))
	defer site.Close()
	_, sitePort, _ := net.SplitHostPort(site.Listener.Addr().String())
	for _, theirs := range []string{"http://127.0.0.1:" + sitePort, "http://evil.example:" + sitePort} {
		p := c.open(theirs)
		p.until("document.title === 'theirs'")
		for what, script := range map[string]string{
			"fetch": `fetch(URL, {credentials: "include"}).then(r => "read", () => "no")`,
			"opaque": `fetch(URL, {credentials: "include", mode: "no-cors"}).then(
				r => r.type === "opaque" ? "no" : "read", () => "no")`,
			"events": `new Promise(done => { const e = new EventSource(URL + "events", {withCredentials: true});
				e.onopen = () => done("read"); e.onerror = () => { e.close(); done("no") } })`,
			"script": `new Promise(done => { const s = document.createElement("script"); s.src = URL + "live.js";
				s.onload = () => done("read"); s.onerror = () => done("no"); document.head.append(s) })`,
			"picture": `new Promise(done => { const i = new Image(); i.src = URL + "icon.svg";
				i.onload = () => done("read"); i.onerror = () => done("no") })`,
			"frame": `new Promise(done => { const f = document.createElement("iframe"); f.src = URL;
				f.onload = () => { try { done(f.contentDocument ? "read" : "no") } catch { done("no") } };
				document.documentElement.append(f) })`,
		} {
			if got := p.eval(strings.ReplaceAll(script, "URL", `"`+base+`"`)); got != `"no"` {
				t.Errorf("%s from %s: %s", what, theirs, got)
			}
		}
	}
	rebound := c.open(strings.Replace(base, "127.0.0.1", "evil.example", 1))
	rebound.until("document.body && document.body.innerText")
	if text := rebound.eval("document.body.innerText"); !strings.Contains(text, "of another site") {
		t.Errorf("a name that points here shows %s", text)
	}
	fresh := start(t).open(base)
	fresh.until("document.body && document.body.innerText")
	if text := fresh.eval("document.body.innerText"); !strings.Contains(text, "has not shown the token") {
		t.Errorf("a browser without the token shows %s", text)
	}
}
