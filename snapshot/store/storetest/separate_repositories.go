package storetest

import (
	"io"
	"maps"
	"net/http"
	"strings"
)

// separateRepositories answers what the inner registry, which has one heap of blobs, would answer
// otherwise.
func (r *Registry) separateRepositories(w http.ResponseWriter, req *http.Request, blob bool) (answered bool) {
	repository, rest, ok := strings.Cut(strings.TrimPrefix(req.URL.Path, "/v2/"), "/blobs/")
	if !ok {
		return false
	}
	query := req.URL.Query()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.links == nil {
		r.links = map[string]bool{}
	}
	switch {
	case blob && !r.links[repository+"@"+rest]:
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"errors":[{"code":"BLOB_UNKNOWN","message":"not in this repository"}]}`)
		return true
	case req.Method == http.MethodPost && query.Has("mount"):
		if from := query.Get("from") + "@" + query.Get("mount"); r.links[from] && !r.NoMount {
			r.links[repository+"@"+query.Get("mount")] = true
			w.WriteHeader(http.StatusCreated)
			return true
		}
		req.URL.RawQuery = ""
	case req.Method == http.MethodPut:
		r.links[repository+"@"+query.Get("digest")] = true
	}
	return false
}

// Forget collects the blobs of a repository.
func (r *Registry) Forget(repository string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.links, func(link string, _ bool) bool { return strings.HasPrefix(link, repository+"@") })
}
