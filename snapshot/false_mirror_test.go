package snapshot

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"testing"

	digest "github.com/opencontainers/go-digest"

	"godwit.dev/godwit/snapshot/store"
	"godwit.dev/godwit/snapshot/store/storetest"
)

// A mirror that is wrong about any one blob of a snapshot stops neither a wake, eager or lazy, nor a copy. A
// verification finds the registry's bytes right.
func TestFalseMirror(t *testing.T) {
	w := newWorld(t, 4)
	r := storetest.Start(t, &storetest.Registry{})
	receipt, err := Push(t.Context(), opened(t, r), w.src, w.opts)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), opened(t, r), receipt.Digest, nil)
	if err != nil {
		t.Fatal(err)
	}
	blobs := []digest.Digest{receipt.Digest, s.parts.config.Digest, s.parts.state.Digest, s.parts.index.Digest,
		s.parts.packs[0].Digest}
	for _, d := range s.parts.disks {
		blobs = append(blobs, d.Digest)
	}
	for _, d := range blobs {
		lies := map[string][]byte{"short": []byte("x"), "long": bytes.Repeat([]byte("x"), 5<<20), "parts": nil}
		for name, lie := range lies {
			t.Run(d.Encoded()[:8]+", "+name, func(t *testing.T) {
				mirror := storetest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
					var first, last int
					part, _ := fmt.Sscanf(q.Header.Get("Range"), "bytes=%d-%d", &first, &last)
					switch at := path.Base(q.URL.Path) == d.String(); {
					case at && part == 0 && lie != nil:
						_, _ = w.Write(lie)
						return
					case at && part == 2 && lie == nil: // wrong bytes, as many as were asked for
						w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/*", first, last))
						w.WriteHeader(http.StatusPartialContent)
						_, _ = w.Write(make([]byte, last-first+1))
						return
					}
					if q.URL.Path != "/v2/" {
						w.WriteHeader(http.StatusNotFound)
					}
				}))
				st := func() store.Store {
					cfg := r.Config(t, "godwit/uid1")
					cfg.HostsDir = t.TempDir()
					dir := filepath.Join(cfg.HostsDir, r.Host())
					text := fmt.Sprintf("server = %q\n[host.%q]\ncapabilities = [\"pull\"]\n", r.URL, mirror)
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
					return st
				}
				s, err := Open(t.Context(), st(), receipt.Digest, &w.opts.Ref)
				if err != nil {
					t.Fatal(err)
				}
				to := opened(t, storetest.Start(t, &storetest.Registry{}))
				if _, err := s.Copy(t.Context(), to, CopyOptions{}); err != nil {
					t.Errorf("copy: %v", err)
				}
				if s, err = Open(t.Context(), st(), receipt.Digest, nil); err != nil {
					t.Fatal(err)
				}
				if v, err := s.Verify(t.Context(), VerifyOptions{}); err != nil || len(v.Bad) != 0 {
					t.Errorf("verify: %+v, %v", v, err)
				}
				if err := w.lazily(t, st(), receipt.Digest, nil, nil); err != nil {
					t.Errorf("lazy wake: %v", err)
				}
			})
		}
	}
}
