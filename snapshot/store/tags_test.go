package store_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
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
