package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/snapshot/store"
	"godwit.dev/godwit/snapshot/store/storetest"
)

// hosts writes a hosts.toml for a registry and returns the directory of all.
func hosts(t *testing.T, registry, text string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, registry), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, registry, "hosts.toml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A mirror is asked first for what is read, with the registry's name, and nothing is stored in
// it. What it lacks, or answers wrongly, comes from the registry.
func TestMirror(t *testing.T) {
	mirror, r := storetest.Start(t, &storetest.Registry{}), storetest.Start(t, &storetest.Registry{})
	data, a := noise(1000)
	cfg := r.Config(t, "p/uid1")
	cfg.HostsDir = hosts(t, r.Host(), fmt.Sprintf("server = %q\n[host.%q]\ncapabilities = "+
		"[\"pull\"]\n[host.%q.header]\nx-team = \"birds\"\n", r.URL, mirror.URL, mirror.URL))
	st := openStore(t, cfg)
	read := func() {
		t.Helper()
		got, err := store.ReadBlob(t.Context(), st, a.Digest, a.Size)
		if err != nil || !bytes.Equal(got, data) {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
	}
	if err := st.Put(t.Context(), store.Blob(a.Digest), a); err != nil {
		t.Fatal(err)
	}
	if n := len(mirror.Take()); n != 0 {
		t.Errorf("a mirror that may not push was asked %d times by a push", n)
	}
	read() // the mirror lacks it
	if n := storetest.Count(r.Take(), "GET /v2/p/uid1/blobs/"); n != 1 {
		t.Errorf("the registry was asked %d times for what the mirror lacks", n)
	}
	if err := openStore(t, mirror.Config(t, "p/uid1")).Put(t.Context(), store.Blob(a.Digest), a); err != nil {
		t.Fatal(err)
	}
	mirror.Take()
	read()
	seen := mirror.Take()
	if n := storetest.Count(r.Take(), "GET /v2/p/uid1/blobs/"); n != 0 || len(seen) != 1 {
		t.Fatalf("the registry was asked %d times, the mirror %d times for what the mirror has", n, len(seen))
	}
	if seen[0].Query != "ns="+"127.0.0.1%3A"+r.Host()[len("127.0.0.1:"):] || seen[0].Header.Get("X-Team") != "birds" {
		t.Errorf("the mirror was asked with %q, %v", seen[0].Query, seen[0].Header)
	}
	mirror.Play(func(int, *http.Request) storetest.Fault { return storetest.Fault{Status: 503} })
	read()
	mirror.Take()
	read()
	if n := len(mirror.Take()); n != 0 {
		t.Errorf("a mirror that was down a moment ago was asked %d times", n)
	}
}

// A server below a path, where override_path says so and where not.
func TestOverridePath(t *testing.T) {
	for prefix, override := range map[string]bool{"/cache/v2": false, "/cache": false, "/deep/api": true} {
		r := storetest.Start(t, &storetest.Registry{})
		real := prefix
		if prefix == "/cache" {
			real = "/cache/v2"
		}
		front := http.StripPrefix(real, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			q.URL.Path = "/v2" + q.URL.Path
			r.ServeHTTP(w, q)
		}))
		outer := storetest.Serve(t, front)
		cfg := r.Config(t, "p/uid1")
		cfg.HostsDir = hosts(t, r.Host(), fmt.Sprintf("server = %q\noverride_path = %v\n", outer+prefix, override))
		_, a := noise(1000)
		st := openStore(t, cfg)
		if _, err := st.Stat(t.Context(), store.Blob(a.Digest)); !errdefs.IsNotFound(err) {
			t.Errorf("%s: %v", prefix, err)
		}
	}
}

// Below a path, an upload goes to the address that the registry gives, whether that begins with
// the path or not. So do the pages of a list.
func TestLocationBelowPath(t *testing.T) {
	for _, prefix := range []string{"/v2/proxy", "/v2/p", "/deep/api"} {
		for _, knows := range []bool{true, false} {
			r := storetest.Start(t, &storetest.Registry{})
			outer := storetest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
				rest, ok := strings.CutPrefix(q.URL.Path, prefix+"/")
				if !ok || rest != "" && !strings.HasPrefix(rest, "q/uid1/") {
					http.Error(w, q.URL.Path, http.StatusTeapot)
					return
				}
				q.URL.Path = "/v2/" + rest
				r.ServeHTTP(located{w, prefix, knows}, q)
			}))
			cfg := r.Config(t, "q/uid1")
			cfg.HostsDir = hosts(t, r.Host(), fmt.Sprintf("server = %q\noverride_path = true\n", outer+prefix))
			data, a := noise(1000)
			st := openStore(t, cfg)
			if err := st.Put(t.Context(), store.Blob(a.Digest), a); err != nil {
				t.Errorf("%s, the registry knows of it: %v: %v", prefix, knows, err)
				continue
			}
			if got, err := store.ReadBlob(t.Context(), st, a.Digest, a.Size); err != nil || !bytes.Equal(got, data) {
				t.Errorf("%s, the registry knows of it: %v: %d bytes, %v", prefix, knows, len(got), err)
			}
		}
	}
}

// located puts the path before the addresses that a registry answers.
type located struct {
	http.ResponseWriter
	prefix string
	knows  bool
}

func (l located) WriteHeader(code int) {
	if rest, ok := strings.CutPrefix(l.Header().Get("Location"), "/v2/"); ok && l.knows {
		l.Header().Set("Location", l.prefix+"/"+rest)
	}
	l.ResponseWriter.WriteHeader(code)
}

// The directory of a registry is found as containerd names it, with an IPv6 address too.
func TestHostsOfIPv6(t *testing.T) {
	for registry, names := range map[string][]string{
		"[::1]:5000": {"[::1]_5000_", "[::1]:5000", "[::1]", "_default"},
		"[::1]":      {"[:_1]_", "[::1]", "_default"},
	} {
		for _, name := range names {
			_, err := store.Open(store.Config{Repository: registry + "/p", DockerConfig: t.TempDir(),
				HostsDir: hosts(t, name, "server = 7")})
			if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "hosts.toml") {
				t.Errorf("registry %s: directory %s was not read: %v", registry, name, err)
			}
		}
	}
}

// What is wrong in a hosts.toml is refused by name, before anything is asked.
func TestHostsRefused(t *testing.T) {
	for text, want := range map[string]error{
		"server = \"ftp://x\"":                           errdefs.ErrInvalidArgument,
		"[host.\"https://m\"]\ncapabilities = [\"fly\"]": errdefs.ErrInvalidArgument,
		"server = 7":                             errdefs.ErrInvalidArgument,
		"capabilities = [\"pull\"]\n":            errdefs.ErrFailedPrecondition, // no node may push
		"[host.\"https://m\"]\nclient = [[1]]\n": errdefs.ErrInvalidArgument,
		"dial_timeout = \"soon\"":                errdefs.ErrInvalidArgument,
		"ca = \"none.pem\"":                      os.ErrNotExist,
	} {
		_, err := store.Open(store.Config{Repository: "r.example/p", DockerConfig: t.TempDir(),
			HostsDir: hosts(t, "r.example", text)})
		if !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", text, err, want)
		}
	}
	for _, name := range []string{"r.example_5000_", "r.example:5000", "r.example", "_default"} {
		_, err := store.Open(store.Config{Repository: "r.example:5000/p", DockerConfig: t.TempDir(),
			HostsDir: hosts(t, name, "server = 7")})
		if !errdefs.IsInvalidArgument(err) {
			t.Errorf("directory %s was not read: %v", name, err)
		}
	}
}

// All transfers of a store together stay below its bandwidth.
func TestBandwidth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		l := store.NewLimiter(1 << 20)
		done := make(chan error)
		for range 4 {
			go func() {
				var err error
				for range 64 {
					if e := l(t.Context(), 16<<10); e != nil {
						err = e
					}
				}
				done <- err
			}()
		}
		for range 4 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(start); took < 4*time.Second || took > 4*time.Second+time.Millisecond {
			t.Errorf("4 MiB at 1 MiB a second took %v", took)
		}
	})
}

// A transfer that stands still is cut and tried again; a slow one goes on.
func TestStallAndSlow(t *testing.T) {
	data, a := noise(64 << 10)
	r := storetest.Start(t, &storetest.Registry{})
	st := openStore(t, r.Config(t, "p/uid1"))
	const stall = 2 * time.Second // far more than this machine may stand still itself
	store.SetStall(st, stall)
	for _, f := range []storetest.Fault{{Up: 1 << 10, Stall: true}, {Down: 1 << 10, Stall: true}} {
		r.Take()
		var hit atomic.Bool
		r.Play(func(_ int, q *http.Request) storetest.Fault {
			if (f.Up > 0) == (q.Method == http.MethodPut) && (q.Method == http.MethodPut || q.Method == http.MethodGet &&
				q.URL.Path != "/v2/") && !hit.Swap(true) {
				return f
			}
			return storetest.Fault{}
		})
		if err := store.RetryAfter(st, time.Millisecond).Put(t.Context(), store.Blob(a.Digest), a); err != nil {
			t.Fatalf("%+v: %v", f, err)
		}
		got, err := store.ReadBlob(t.Context(), st, a.Digest, a.Size)
		if err != nil || !bytes.Equal(got, data) || !hit.Load() {
			t.Errorf("%+v: %d bytes, %v, stood still: %v", f, len(got), err, hit.Load())
		}
	}
	r.Change(func() { r.Script, r.Slow = nil, stall/12 }) // in 16 pieces
	r.Take()
	if _, err := store.ReadBlob(t.Context(), st, a.Digest, a.Size); err != nil {
		t.Error(err)
	}
	if n := len(r.Take()); n != 1 {
		t.Errorf("a slow answer took %d requests", n)
	}
}
