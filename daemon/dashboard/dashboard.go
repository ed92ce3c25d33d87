// Package dashboard is the web page of godwitd: nodes, VMs and what is under way, as the node service and the
// controller tell them. It only reads. Who may open its socket may see what `godwit ps` shows.
package dashboard

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"time"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

//go:embed web
var web embed.FS

// maxStreams bounds the pages that are kept up to date at once.
const maxStreams = 32

// security is said with each answer: the page loads nothing from elsewhere and runs no script of its text.
const security = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Page serves the dashboard of one node.
type Page struct {
	Node   string // its name
	Source Source
	Now    func() time.Time // nil: the clock

	look    looker
	streams chan struct{}
	pages   *template.Template
	mux     *http.ServeMux
}

// New makes the page of a node.
func New(node string, source Source) *Page {
	p := &Page{Node: node, Source: source, Now: time.Now, streams: make(chan struct{}, maxStreams)}
	p.pages = template.Must(template.New("").Funcs(functions).ParseFS(web, "web/*.html"))
	p.mux = http.NewServeMux()
	p.mux.HandleFunc("GET /{$}", p.index)
	p.mux.HandleFunc("GET /vm", p.vm)
	p.mux.HandleFunc("GET /events", p.events)
	for name, kind := range map[string]string{
		"style.css": "text/css; charset=utf-8", "live.js": "text/javascript; charset=utf-8", "icon.svg": "image/svg+xml",
	} {
		p.mux.HandleFunc("GET /"+name, file(name, kind))
	}
	return p
}

// ServeHTTP implements http.Handler.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Content-Security-Policy", security)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cache-Control", "no-store")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	p.mux.ServeHTTP(w, r)
}

func file(name, kind string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		data, err := web.ReadFile("web/" + name)
		if err != nil {
			http.Error(w, "not found", http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", kind)
		_, _ = w.Write(data)
	}
}

func (p *Page) index(w http.ResponseWriter, r *http.Request) {
	p.render(w, "page.html", p.view(r))
}

// vm is the page of one VM, named by the query: an id may hold what a path may not.
func (p *Page) vm(w http.ResponseWriter, r *http.Request) {
	vm := &nodev1.VM{Namespace: r.URL.Query().Get("namespace"), Id: r.URL.Query().Get("id")}
	if vm.GetNamespace() == "" || vm.GetId() == "" {
		http.Error(w, "write vm?namespace=NAMESPACE&id=ID", http.StatusBadRequest)
		return
	}
	p.render(w, "vm.html", p.detail(r, vm))
}

func (p *Page) render(w http.ResponseWriter, name string, data any) {
	var page bytes.Buffer
	if err := p.pages.ExecuteTemplate(&page, name, data); err != nil {
		slog.Error("make the dashboard's page", "error", err)
		http.Error(w, "the page could not be made: see the log of godwitd", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = fmt.Fprint(w, page.String())
}
