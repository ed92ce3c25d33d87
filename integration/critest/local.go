package critest

import (
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"time"

	"godwit.dev/godwit/integration/harness"
)

// localRegistry is where a client of containerd looks for images whose host is localhost.
const localRegistry = "127.0.0.1:80"

// serveLocal has the registry answer on the node's own localhost too: containerd's suite pulls some images past CRI,
// and so past its configuration of registries.
func (g *Ground) serveLocal() error {
	var l net.Listener
	err := g.Enter(func() (err error) { l, err = net.Listen("tcp4", localRegistry); return err })
	if err != nil {
		return err
	}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: harness.RegistryHost})
	proxy.Transport = &http.Transport{DialContext: g.h.Dial}
	server := &http.Server{Handler: proxy, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(l) }()
	g.h.OnClose(server.Close)
	return nil
}
