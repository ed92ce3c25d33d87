// Package otlptest is a collector of spans, in the process of a test.
package otlptest

import (
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	collect "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/protobuf/proto"
)

// Span is one as the collector got it; ids are hexadecimal.
type Span struct {
	Trace, ID, Parent string
	Name, Program     string
	Host              string
	Error             string
	Start, End        time.Time
	Attributes        map[string]string
}

// Collector takes OTLP over HTTP.
type Collector struct {
	server http.Server

	mu       sync.Mutex
	spans    []Span
	requests int
}

// Serve answers on each of the listeners until Close.
func Serve(listeners ...net.Listener) *Collector {
	c := &Collector{server: http.Server{ReadHeaderTimeout: 10 * time.Second}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/traces", c.take)
	c.server.Handler = mux
	for _, l := range listeners {
		go func() { _ = c.server.Serve(l) }()
	}
	return c
}

// Close the listeners.
func (c *Collector) Close() error { return c.server.Close() }

func (c *Collector) take(w http.ResponseWriter, r *http.Request) {
	var req collect.ExportTraceServiceRequest
	data, err := io.ReadAll(r.Body)
	if err == nil {
		err = proto.Unmarshal(data, &req)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests++
	for _, resource := range req.GetResourceSpans() {
		host := texts(resource.GetResource().GetAttributes())["host.name"]
		for _, scope := range resource.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				c.spans = append(c.spans, Span{
					Trace: hex.EncodeToString(s.GetTraceId()), ID: hex.EncodeToString(s.GetSpanId()),
					Parent: hex.EncodeToString(s.GetParentSpanId()),
					Name:   s.GetName(), Program: scope.GetScope().GetName(), Host: host, Error: s.GetStatus().GetMessage(),
					Start: time.Unix(0, int64(s.GetStartTimeUnixNano())), End: time.Unix(0, int64(s.GetEndTimeUnixNano())),
					Attributes: texts(s.GetAttributes()),
				})
			}
		}
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
}

func texts(all []*common.KeyValue) map[string]string {
	m := map[string]string{}
	for _, kv := range all {
		m[kv.GetKey()] = kv.GetValue().GetStringValue()
	}
	return m
}

// Requests is how many came.
func (c *Collector) Requests() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.requests
}

// Trace answers what came of a trace, in the order of their starts.
func (c *Collector) Trace(id string) []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	var own []Span
	for _, s := range c.spans {
		if s.Trace == id {
			own = append(own, s)
		}
	}
	slices.SortFunc(own, func(a, b Span) int { return a.Start.Compare(b.Start) })
	return own
}

// Tree draws a trace: a line for each span, "program: name", below its parent, siblings that
// are alike once. A span whose parent is not there is an error.
func (c *Collector) Tree(id string) (string, error) {
	all := c.Trace(id)
	known := map[string]bool{}
	for _, s := range all {
		known[s.ID] = true
	}
	for _, s := range all {
		if s.Parent != "" && !known[s.Parent] {
			return "", fmt.Errorf("span %q of %s has no parent among %d spans", s.Name, s.Program, len(all))
		}
	}
	var b strings.Builder
	draw(&b, all, "", "")
	return b.String(), nil
}

func draw(b *strings.Builder, all []Span, parent, indent string) {
	last := ""
	for _, s := range all {
		if s.Parent != parent {
			continue
		}
		var own strings.Builder
		fmt.Fprintf(&own, "%s%s: %s\n", indent, s.Program, s.Name)
		draw(&own, all, s.ID, indent+"  ")
		if own.String() != last {
			b.WriteString(own.String())
		}
		last = own.String()
	}
}
