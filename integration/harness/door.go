package harness

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Exchange is one request that passed the door, as the wire showed it.
type Exchange struct {
	Method, Path string
	Status       int
	Up, Down     int64 // bytes of the bodies
	Start, End   time.Time
}

// Fault is what happens to a request instead of its answer. The zero value lets it pass.
type Fault struct {
	Status int   // answer this instead of asking the registry
	Cut    int64 // close the connection after this many bytes of the body, either way
	Stall  int64 // send no more than this many bytes of the answer's body, until the client is gone
}

// Door passes requests to the registry, counts them, and can fail any of them.
type Door struct {
	proxy *httputil.ReverseProxy

	mu    sync.Mutex
	fault func(n int, r *http.Request) Fault
	seen  int
	log   []Exchange
}

func newDoor(backend string, dial func(ctx context.Context, network, address string) (net.Conn, error)) *Door {
	return &Door{proxy: &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: backend})
			r.Out.Host = r.In.Host
		},
		Transport:     &http.Transport{DialContext: dial, DisableCompression: true, MaxIdleConnsPerHost: 16},
		FlushInterval: -1,
	}}
}

// SetFault decides the fate of the requests from now on; n counts them from 1. nil lets
// all pass. f is called for several requests at once, and holds one by not returning.
func (d *Door) SetFault(f func(n int, r *http.Request) Fault) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fault, d.seen = f, 0
}

// Hold keeps all requests that match until open is called, or their client is gone: reached is
// closed when the first one is here. Others pass. It takes the place of SetFault, and open ends both.
func (d *Door) Hold(match func(r *http.Request) bool) (reached <-chan struct{}, open func()) {
	here, opened := make(chan struct{}), make(chan struct{})
	first := sync.OnceFunc(func() { close(here) })
	d.SetFault(func(_ int, r *http.Request) Fault {
		if match(r) {
			first()
			select {
			case <-opened:
			case <-r.Context().Done():
			}
		}
		return Fault{}
	})
	return here, sync.OnceFunc(func() { close(opened); d.SetFault(nil) })
}

// Take answers the exchanges since the last call and forgets them.
func (d *Door) Take() []Exchange {
	d.mu.Lock()
	defer d.mu.Unlock()
	log := d.log
	d.log = nil
	return log
}

// next asks outside the lock: a fault may hold its request for as long as it likes.
func (d *Door) next(r *http.Request) Fault {
	d.mu.Lock()
	d.seen++
	n, fault := d.seen, d.fault
	d.mu.Unlock()
	if fault == nil {
		return Fault{}
	}
	return fault(n, r)
}

func (d *Door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	fault := d.next(r)
	e := Exchange{Method: r.Method, Path: r.URL.Path, Start: time.Now()}
	up := &countedBody{ReadCloser: r.Body, cut: fault.Cut}
	down := &countedWriter{ResponseWriter: w, status: http.StatusOK, cut: fault.Cut, stall: fault.Stall,
		gone: r.Context().Done()}
	defer func() {
		e.Status, e.Up, e.Down, e.End = down.status, up.n.Load(), down.n, time.Now()
		d.mu.Lock()
		defer d.mu.Unlock()
		d.log = append(d.log, e)
	}()
	if fault.Status != 0 {
		down.Header().Set("Content-Type", "application/json")
		down.WriteHeader(fault.Status)
		fmt.Fprintf(down, `{"errors":[{"code":"UNKNOWN","message":"injected %d"}]}`, fault.Status)
		return
	}
	r.Body = up
	d.proxy.ServeHTTP(down, r)
	if fault.Cut > 0 && (up.n.Load() >= fault.Cut || down.n >= fault.Cut) {
		panic(http.ErrAbortHandler) // net/http's way to close the connection
	}
}

type countedBody struct {
	io.ReadCloser
	n   atomic.Int64 // the transport may still read after the answer
	cut int64
}

func (b *countedBody) Read(p []byte) (int, error) {
	if b.cut > 0 && b.n.Load() >= b.cut {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := b.ReadCloser.Read(p)
	b.n.Add(int64(n))
	return n, err
}

type countedWriter struct {
	http.ResponseWriter
	status int
	n      int64
	cut    int64
	stall  int64
	gone   <-chan struct{} // closed when the client is
}

func (w *countedWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

func (w *countedWriter) Write(p []byte) (int, error) {
	if w.cut > 0 && w.n >= w.cut {
		return 0, io.ErrShortWrite
	}
	if w.stall > 0 && w.n+int64(len(p)) > w.stall {
		n, err := w.ResponseWriter.Write(p[:w.stall-w.n])
		w.n += int64(n)
		if err == nil {
			err = http.NewResponseController(w.ResponseWriter).Flush()
		}
		<-w.gone
		return n, cmp.Or(err, io.ErrShortWrite)
	}
	n, err := w.ResponseWriter.Write(p)
	w.n += int64(n)
	return n, err
}

// Unwrap lets the proxy flush.
func (w *countedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Push sums up the exchanges of one push.
type Push struct {
	Bytes    int64     // of all bodies sent to the registry
	LastBlob time.Time // end of the last blob
	Manifest time.Time // end of the manifest, the commit in the registry
}

// SumPush reads a push from the exchanges; ok is false if no manifest was accepted.
func SumPush(log []Exchange) (p Push, ok bool) {
	for _, e := range log {
		if e.Status >= 300 || e.Method != http.MethodPut && e.Method != http.MethodPatch && e.Method != http.MethodPost {
			continue
		}
		p.Bytes += e.Up
		switch {
		case strings.Contains(e.Path, "/manifests/"):
			p.Manifest, ok = e.End, true
		case e.Up > 0 && e.End.After(p.LastBlob):
			p.LastBlob = e.End
		}
	}
	return p, ok
}
