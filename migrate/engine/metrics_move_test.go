package engine

import (
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// Moves count by mode, result and reason; the downtime is of those that succeeded.
func TestMoveMetrics(t *testing.T) {
	w := liveWorld(t)
	registry := prometheus.NewRegistry()
	m, err := NewMoveMetrics(registry, w.records)
	if err != nil {
		t.Fatal(err)
	}
	e := w.start("c")
	e.Events = m
	w.move(e, "m1", "n2", "live")
	w.fences = true
	w.move(e, "m2", "n1", "cold")
	w.until("both are counted", func() bool {
		return gathered(t, registry, "godwit_migration_total", "cold", "failed") == 1
	})
	if n := gathered(t, registry, "godwit_migration_total", "live", "ok"); n != 1 {
		t.Errorf("%v live moves succeeded", n)
	}
	w.fences, w.obstacles = false, []string{"it has no room"}
	w.move(e, "m3", "n1", "live")
	w.obstacles = nil
	w.hangs("Send", true)
	if err := w.moveTo(e, "m4", "n1", "live"); err != nil {
		t.Fatal(err)
	}
	w.called("Send", 2)
	if _, err := e.Cancel(t.Context(), "m4", "no more"); err != nil {
		t.Fatal(err)
	}
	w.settle("m4")
	w.until("the last one is counted", func() bool {
		return gathered(t, registry, "godwit_migration_total", "live", "aborted") == 1
	})
	for labels, want := range map[[3]string]float64{
		// by name
		{"cold", "fenced", "failed"}: 1, {"live", "failed precondition", "failed"}: 1, {"live", "ordered", "aborted"}: 1,
	} {
		if n := gathered(t, registry, "godwit_migration_failures_total", labels[:]...); n != want {
			t.Errorf("%v: %v moves", labels, n)
		}
	}
	if n := gathered(t, registry, "godwit_migration_active"); n != 0 {
		t.Errorf("%v moves are open", n)
	}
	if n := gathered(t, registry, "godwit_migration_in_doubt_seconds"); n != 2 || len(m.since) != 0 {
		t.Errorf("%v were in doubt, open %v", n, m.since)
	}
	if n := gathered(t, registry, "godwit_migration_downtime_seconds"); n != 1 {
		t.Errorf("%v downtimes", n)
	}
}

// gathered answers a counter or gauge with these label values, or how much a histogram has
// seen.
func gathered(t *testing.T, registry *prometheus.Registry, name string, labels ...string) float64 {
	t.Helper()
	value, ok := sampled(t, registry, name, labels...)
	if !ok {
		t.Fatalf("no metric %s %v", name, labels)
	}
	return value
}

// sampled is gathered of a metric that may not be there yet.
func sampled(t *testing.T, registry *prometheus.Registry, name string, labels ...string) (value float64, ok bool) {
	t.Helper()
	all, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range all {
		for _, m := range family.GetMetric() {
			var has []string
			for _, l := range m.GetLabel() {
				has = append(has, l.GetValue())
			}
			if family.GetName() == name && slices.Equal(has, labels) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount()), true
			}
		}
	}
	return 0, false
}
