package engine

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Metrics counts settled operations.
type Metrics struct {
	wakes, hibernates *prometheus.CounterVec
	pause             prometheus.Histogram
}

// results of a settled operation, as labels.
var results = map[Type]string{Succeeded: "ok", Failed: "failed", Aborted: "aborted", Lost: "lost"}

// NewMetrics registers the counters, at 0 for every result.
func NewMetrics(registry prometheus.Registerer) (*Metrics, error) {
	counter := func(name, help string) *prometheus.CounterVec {
		vec := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{"result"})
		for _, result := range results {
			vec.WithLabelValues(result)
		}
		return vec
	}
	m := &Metrics{
		wakes:      counter("godwit_wake_total", "Wakes that this node has settled."),
		hibernates: counter("godwit_hibernate_total", "Hibernates that this node has settled."),
		pause: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "godwit_pause_seconds", Help: "From the stop of a VM to the last page read, of hibernates that succeeded.",
			Buckets: prometheus.ExponentialBuckets(0.005, 2, 14),
		}),
	}
	for _, c := range []prometheus.Collector{m.wakes, m.hibernates, m.pause} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics of the engine: %w", err)
		}
	}
	return m, nil
}

// Wake counts a wake that was settled without an engine: a task that was created while
// its VM slept. An unknown result is counted too, under its own name.
func (m *Metrics) Wake(result string) { m.wakes.WithLabelValues(result).Inc() }

// Event implements Events.
func (m *Metrics) Event(_ context.Context, ev Event) {
	result, ok := results[ev.Type]
	if !ok {
		return
	}
	if ev.Kind == nodev1.Kind_KIND_MIGRATE {
		return
	}
	if ev.Kind == nodev1.Kind_KIND_WAKE {
		m.wakes.WithLabelValues(result).Inc()
		return
	}
	m.hibernates.WithLabelValues(result).Inc()
	if r, err := record.ParseReceipt(ev.Receipt); err == nil && ev.Type == Succeeded {
		m.pause.Observe(r.PauseMS / 1000)
	}
}
