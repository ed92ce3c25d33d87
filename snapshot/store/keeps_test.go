package store_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"

	"godwit.dev/godwit/snapshot/store"
	"godwit.dev/godwit/snapshot/store/storetest"
)

// A host of hosts.toml that stores is no mirror: what it does not answer is not absent, whatever the registry after it
// says, and it is asked again after a connection that broke.
func TestHostThatStoresIsNoMirror(t *testing.T) {
	data := []byte(strings.Repeat("data", 1<<10))
	d := digest.FromBytes(data)
	var breaks, fails atomic.Bool
	keeper := storetest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		switch at := strings.HasSuffix(q.URL.Path, d.String()); {
		case at && fails.Load():
			w.WriteHeader(http.StatusServiceUnavailable)
		case at && breaks.CompareAndSwap(true, false):
			w.Header().Set("Content-Length", fmt.Sprint(len(data)))
			_, _ = w.Write(data[:100])
			panic(http.ErrAbortHandler)
		case at:
			http.ServeContent(w, q, "", time.Time{}, strings.NewReader(string(data)))
		}
	}))
	r := storetest.Start(t, &storetest.Registry{}) // it has none of it
	cfg := r.Config(t, "godwit/uid1")
	cfg.HostsDir = t.TempDir()
	dir := filepath.Join(cfg.HostsDir, r.Host())
	text := fmt.Sprintf("server = %q\n[host.%q]\ncapabilities = [\"pull\", \"push\"]\n", r.URL, keeper)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	st, err := store.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // with a break each time
		breaks.Store(true)
		if got, err := store.ReadBlob(t.Context(), st, d, int64(len(data))); err != nil || string(got) != string(data) {
			t.Errorf("after a break: %d bytes, %v", len(got), err)
		}
	}
	fails.Store(true)
	if _, err := store.ReadBlob(t.Context(), st, d, int64(len(data))); !errdefs.IsUnavailable(err) {
		t.Errorf("it does not answer: %v", err)
	}
}
