package store_test

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/snapshot/store"
	"godwit.dev/godwit/snapshot/store/storetest"
)

// A list of tags of which one page cannot be had is an error. It is never a shorter list, nor
// an empty one: what no tag names is deleted one day.
func TestTagsAreWholeOrAnError(t *testing.T) {
	for name, test := range map[string]struct {
		link   string // of the first page
		status int    // of the second page
		tags   []string
	}{
		"one page":               {"", 0, []string{"a", "b"}},
		"two pages":              {`</v2/p/uid1/tags/list?n=1000&last=b>; rel="next"`, 200, []string{"a", "b", "c"}},
		"no quotes":              {`</v2/p/uid1/tags/list?n=1000&last=b>; rel=next`, 200, []string{"a", "b", "c"}},
		"another relation":       {`</v2/p/uid1/tags/list?n=1000&last=b>; rel="first"`, 404, []string{"a", "b"}},
		"the second page is 404": {`</v2/p/uid1/tags/list?n=1000&last=b>; rel="next"`, 404, nil},
		"the second page is 500": {`</v2/p/uid1/tags/list?n=1000&last=b>; rel="next"`, 500, nil},
		"another host":           {`<http://other.example/v2/p/uid1/tags/list?last=b>; rel="next"`, 200, nil},
		"no address":             {`<http://[/>; rel="next"`, 200, nil},
	} {
		t.Run(name, func(t *testing.T) {
			outer := storetest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case !strings.HasSuffix(r.URL.Path, "/tags/list"):
				case r.URL.Query().Get("last") == "":
					if test.link != "" {
						w.Header().Set("Link", test.link)
					}
					_, _ = fmt.Fprint(w, `{"tags":["a","b"]}`)
				case test.status != http.StatusOK:
					w.WriteHeader(test.status)
				default:
					_, _ = fmt.Fprint(w, `{"tags":["c"]}`)
				}
			}))
			cfg := store.Config{Repository: strings.TrimPrefix(outer, "http://") + "/p/uid1", PlainHTTP: true,
				DockerConfig: t.TempDir()}
			st, err := store.NewRegistry(cfg)
			if err != nil {
				t.Fatal(err)
			}
			tags, err := st.Tags(t.Context())
			if !slices.Equal(tags, test.tags) || (err != nil) != (test.tags == nil) {
				t.Errorf("tags %q, %v", tags, err)
			}
			if err != nil && !errdefs.IsUnavailable(err) {
				t.Errorf("class of %v", err)
			}
		})
	}
}

// listing serves pages of tags, and counts them.
func listing(t *testing.T, page func(w http.ResponseWriter, r *http.Request, n int64)) (*store.Registry,
	*atomic.Int64) {
	t.Helper()
	var pages atomic.Int64
	outer := storetest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/tags/list") {
			page(w, r, pages.Add(1))
		}
	}))
	st, err := store.NewRegistry(store.Config{Repository: strings.TrimPrefix(outer, "http://") + "/p/uid1",
		PlainHTTP: true, DockerConfig: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	return st, &pages
}

// A registry may not fill a node's memory, or keep it busy, with a list of tags. What is too long or makes no
// sense is an error, never a shorter list.
func TestTagsAreBounded(t *testing.T) {
	fill := func(tag string, n int) string {
		return `{"tags":[` + strings.TrimSuffix(strings.Repeat(`"`+tag+`",`, n), ",") + `]}`
	}
	next := func(w http.ResponseWriter, n int64) {
		w.Header().Set("Link", fmt.Sprintf(`</v2/p/uid1/tags/list?last=%d>; rel="next"`, n))
	}
	for name, test := range map[string]struct {
		page  func(w http.ResponseWriter, r *http.Request, n int64)
		class error
		pages int64
	}{
		"one page without end": {func(w http.ResponseWriter, _ *http.Request, _ int64) {
			_, _ = fmt.Fprint(w, fill("", 6<<20))
		}, errdefs.ErrResourceExhausted, 1},
		"empty tags": {func(w http.ResponseWriter, _ *http.Request, _ int64) {
			_, _ = fmt.Fprint(w, fill("", 2<<20))
		}, errdefs.ErrResourceExhausted, 1},
		"too many bytes on all pages": {func(w http.ResponseWriter, _ *http.Request, n int64) {
			next(w, n)
			_, _ = fmt.Fprint(w, `{"name":"`+strings.Repeat("x", 6<<20)+`","tags":["a"]}`)
		}, errdefs.ErrResourceExhausted, 3},
		"too many tags on all pages": {func(w http.ResponseWriter, _ *http.Request, n int64) {
			next(w, n)
			_, _ = fmt.Fprint(w, fill("a", 40_000))
		}, errdefs.ErrResourceExhausted, 3},
		"the same page": {func(w http.ResponseWriter, r *http.Request, _ int64) {
			w.Header().Set("Link", "<"+r.URL.String()+`>; rel="next"`)
			_, _ = fmt.Fprint(w, fill("a", 1))
		}, errdefs.ErrUnavailable, 1},
		"a circle of pages": {func(w http.ResponseWriter, _ *http.Request, n int64) {
			next(w, n%3)
			_, _ = fmt.Fprint(w, fill("a", 1))
		}, errdefs.ErrUnavailable, 4},
		"an empty name": {func(w http.ResponseWriter, _ *http.Request, _ int64) {
			_, _ = fmt.Fprint(w, `{"tags":["a",""]}`)
		}, errdefs.ErrUnavailable, 1},
		"a path": {func(w http.ResponseWriter, _ *http.Request, _ int64) {
			_, _ = fmt.Fprint(w, `{"tags":["../../other/manifests/a"]}`)
		}, errdefs.ErrUnavailable, 1},
		"a long name": {func(w http.ResponseWriter, _ *http.Request, _ int64) {
			_, _ = fmt.Fprint(w, fill(strings.Repeat("x", 129), 1))
		}, errdefs.ErrUnavailable, 1},
	} {
		t.Run(name, func(t *testing.T) {
			st, pages := listing(t, test.page)
			tags, err := st.Tags(t.Context())
			if tags != nil || !errors.Is(err, test.class) || pages.Load() != test.pages {
				t.Errorf("%d tags of %d pages, %v; want %v after %d", len(tags), pages.Load(), err, test.class, test.pages)
			}
		})
	}
	st, _ := listing(t, func(w http.ResponseWriter, _ *http.Request, _ int64) { _, _ = fmt.Fprint(w, fill("a", 100_000)) })
	if tags, err := st.Tags(t.Context()); err != nil || len(tags) != 100_000 {
		t.Errorf("%d tags of as many as may be, %v", len(tags), err)
	}
	for _, body := range []string{`{"name":"p/uid1"}`, `{"tags":null}`, `{"tags":[]}`} {
		st, _ := listing(t, func(w http.ResponseWriter, r *http.Request, _ int64) {
			if got := r.Header.Get("Accept-Encoding"); got != "" {
				t.Errorf("asked for %q: its bound would not be one of bytes sent", got)
			}
			_, _ = fmt.Fprint(w, body)
		})
		if tags, err := st.Tags(t.Context()); err != nil || len(tags) != 0 {
			t.Errorf("%s: %q, %v", body, tags, err)
		}
	}
}
