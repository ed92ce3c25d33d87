package main

import (
	"context"
	"net"
	"net/http"
	"net/http/httputil"
	"time"
)

const (
	scrapeBound = 10 * time.Second // for godwitd's answer to begin
	scrapeIdle  = time.Minute      // of a connection between two scrapes
)

// scrape passes on what godwitd answers about its metrics on a socket. Of the request it passes nothing on, as it has
// the reader's token. While godwitd is away the answer is 502.
func scrape(socket string) http.Handler {
	var dialer net.Dialer
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out, _ = http.NewRequestWithContext(r.Out.Context(), http.MethodGet, "http://godwitd/metrics", nil)
		},
		Transport: &http.Transport{ResponseHeaderTimeout: scrapeBound, MaxIdleConns: 1, IdleConnTimeout: scrapeIdle,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return dialer.DialContext(ctx, "unix", socket)
			}},
	}
}
