package control

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/labels"
)

// memoryAPI answers as an API server does for the objects of a store, without a network: a clock that stands still
// would wait for that.
type memoryAPI struct {
	mu      sync.Mutex
	version int
	all     map[string]map[string]any // by path
}

func newMemoryAPI() *memoryAPI { return &memoryAPI{version: 1, all: map[string]map[string]any{}} }

func answerOf(req *http.Request, code int, body any) *http.Response {
	data, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	return &http.Response{StatusCode: code, Status: http.StatusText(code), Request: req, Proto: "HTTP/1.1", ProtoMajor: 1,
		ProtoMinor: 1, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(data)),
		ContentLength: int64(len(data))}
}

// RoundTrip implements http.RoundTripper.
func (m *memoryAPI) RoundTrip(req *http.Request) (*http.Response, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	at, body := req.URL.Path, map[string]any{}
	if req.Body != nil {
		if err := json.NewDecoder(req.Body).Decode(&body); err != nil && err != io.EOF {
			return nil, err
		}
	}
	resource := path.Base(at)
	list := resource == "vmrecords" || resource == "configmaps"
	switch {
	case req.URL.Query().Get("watch") != "": // it remembers nothing
		return status(req, http.StatusGone, "Expired", nil), nil
	case list && req.Method == http.MethodGet:
		return m.list(req)
	case list:
		name, _ := metaOf(body)["name"].(string)
		at = path.Join(at, name)
		if m.all[at] != nil {
			return status(req, http.StatusConflict, "AlreadyExists", map[string]any{"name": name}), nil
		}
		metaOf(body)["uid"] = "uid-" + strconv.Itoa(m.version)
		return answerOf(req, http.StatusCreated, m.write(at, body)), nil
	}
	old := m.all[at]
	switch {
	case old == nil:
		return status(req, http.StatusNotFound, "NotFound", map[string]any{"name": resource}), nil
	case req.Method == http.MethodGet:
		return answerOf(req, http.StatusOK, old), nil
	case req.Method == http.MethodDelete:
		delete(m.all, at)
		return answerOf(req, http.StatusOK, map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Success"}), nil
	case metaOf(body)["resourceVersion"] != metaOf(old)["resourceVersion"]:
		return status(req, http.StatusConflict, "Conflict", map[string]any{"name": resource}), nil
	}
	return answerOf(req, http.StatusOK, m.write(at, body)), nil
}

func metaOf(o map[string]any) map[string]any {
	m, _ := o["metadata"].(map[string]any)
	return m
}

func (m *memoryAPI) write(at string, o map[string]any) map[string]any {
	m.version++
	metaOf(o)["resourceVersion"] = strconv.Itoa(m.version)
	m.all[at] = o
	return o
}

func (m *memoryAPI) list(req *http.Request) (*http.Response, error) {
	selector, err := labels.Parse(req.URL.Query().Get("labelSelector"))
	if err != nil {
		return nil, err
	}
	items := []any{}
	for _, at := range slices.Sorted(maps.Keys(m.all)) {
		has := labels.Set{}
		of, _ := metaOf(m.all[at])["labels"].(map[string]any)
		for k, v := range of {
			has[k] = fmt.Sprint(v)
		}
		if strings.HasPrefix(at, req.URL.Path+"/") && selector.Matches(has) {
			items = append(items, m.all[at])
		}
	}
	return answerOf(req, http.StatusOK, map[string]any{"items": items,
		"metadata": map[string]any{"resourceVersion": strconv.Itoa(m.version)}}), nil
}
