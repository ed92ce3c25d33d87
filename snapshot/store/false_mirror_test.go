package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/snapshot/store"
	"godwit.dev/godwit/snapshot/store/storetest"
)

// liar is a mirror that answers each question for bytes with some of its own.
func liar(t *testing.T, r *storetest.Registry, answer func(w http.ResponseWriter)) (store.Store, *atomic.Int64) {
	t.Helper()
	var asked atomic.Int64
	mirror := storetest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.URL.Path != "/v2/" {
			asked.Add(1)
			answer(w)
		}
	}))
	cfg := r.Config(t, "p/uid1")
	cfg.HostsDir = hosts(t, r.Host(), fmt.Sprintf("server = %q\n[host.%q]\ncapabilities = [\"pull\", \"resolve\"]\n",
		r.URL, mirror))
	return openStore(t, cfg), &asked
}

// A mirror whose bytes are not what was asked for stops no wake: the registry that it stands for is asked, and the
// mirror rests. What a tag stands for is no mirror's to say.
func TestFalseMirror(t *testing.T) {
	data, a := noise(1000)
	m := manifestOf(a)
	for name, answer := range map[string]func(w http.ResponseWriter){
		"other bytes": func(w http.ResponseWriter) { _, _ = w.Write(bytes.Repeat([]byte("x"), len(data))) },
		"too few":     func(w http.ResponseWriter) { _, _ = w.Write(data[:10]) },
		"none":        func(http.ResponseWriter) {},
		"too many": func(w http.ResponseWriter) {
			for range 3 {
				_, _ = w.Write(bytes.Repeat(data, 1000))
			}
		},
		"it breaks off": func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "1000")
			_, _ = w.Write(data[:10])
		},
		"another manifest": func(w http.ResponseWriter) { _, _ = io.WriteString(w, `{"layers":[]}`) },
	} {
		r := storetest.Start(t, &storetest.Registry{})
		if err := move(t.Context(), openStore(t, r.Config(t, "p/uid1")), a); err != nil {
			t.Fatal(err)
		}
		text, err := store.Read(t.Context(), openStore(t, r.Config(t, "p/uid1")), store.Manifest("t"), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		for what, read := range map[string]func(s store.Store) ([]byte, error){
			"a blob": func(s store.Store) ([]byte, error) { return store.ReadBlob(t.Context(), s, a.Digest, a.Size) },
			"a file": func(s store.Store) ([]byte, error) {
				f, err := os.Create(filepath.Join(t.TempDir(), "disk"))
				if err != nil {
					return nil, err
				}
				defer f.Close()
				_, err = f.WriteString("before")
				if err = errors.Join(err, store.Copy(t.Context(), s, a.Digest, a.Size, f)); err != nil {
					return nil, err
				}
				got, err := os.ReadFile(f.Name())
				return bytes.TrimPrefix(got, []byte("before")), err
			},
			"nothing": func(s store.Store) ([]byte, error) {
				return data, store.Copy(t.Context(), s, a.Digest, a.Size, io.Discard)
			},
			"a manifest": func(s store.Store) ([]byte, error) {
				return store.Read(t.Context(), s, store.Manifest(m.Digest.String()), 1<<20)
			},
			"a tag": func(s store.Store) ([]byte, error) { return store.Read(t.Context(), s, store.Manifest("t"), 1<<20) },
		} {
			s, asked := liar(t, r, answer)
			want, most := data, int64(1)
			if strings.HasSuffix(what, "manifest") || what == "a tag" {
				want = text
			}
			if what == "a tag" {
				most = 0
			}
			for range 2 {
				if got, err := read(s); err != nil || !bytes.Equal(got, want) {
					t.Errorf("%s, %s: %d bytes, %v", name, what, len(got), err)
				}
			}
			if n := asked.Load(); n != most {
				t.Errorf("%s, %s: the mirror was asked %d times, want %d", name, what, n, most)
			}
		}
	}
}

// Who finds out alone that a body is false says so, and the next host is asked. A part that is not the one that was
// asked for is rejected too. If the registry itself has other bytes, that is DataLoss.
func TestRejectedBody(t *testing.T) {
	data, a := noise(1000)
	r := storetest.Start(t, &storetest.Registry{})
	if err := openStore(t, r.Config(t, "p/uid1")).Put(t.Context(), store.Blob(a.Digest), a); err != nil {
		t.Fatal(err)
	}
	s, _ := liar(t, r, func(w http.ResponseWriter) { _, _ = w.Write([]byte("x")) })
	for i, mirror := range []bool{true, false} {
		body, err := s.Get(t.Context(), store.Blob(a.Digest))
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(body)
		if bytes.Equal(got, data) == mirror || err != nil || store.Reject(body) != mirror {
			t.Errorf("try %d: %d bytes, %v", i, len(got), err)
		}
		body.Close()
	}
	s, _ = liar(t, r, func(w http.ResponseWriter) {
		w.Header().Set("Content-Range", "bytes 0-9/1000")
		w.WriteHeader(http.StatusPartialContent)
		_, _ = w.Write(data[:10])
	})
	body, err := s.(store.Ranger).GetRange(t.Context(), a.Digest, 100, 10)
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	if got, err := io.ReadAll(body); err != nil || !bytes.Equal(got, data[100:110]) {
		t.Errorf("a part: %d bytes, %v", len(got), err)
	}
	r.Play(func(int, *http.Request) storetest.Fault { return storetest.Fault{Status: 200, Body: "y"} })
	s, _ = liar(t, r, func(w http.ResponseWriter) { _, _ = w.Write([]byte("x")) })
	if _, err := store.ReadBlob(t.Context(), s, a.Digest, a.Size); !errors.Is(err, errdefs.ErrDataLoss) {
		t.Errorf("both are false: %v", err)
	}
}
