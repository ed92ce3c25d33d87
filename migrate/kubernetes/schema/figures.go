package schema

import (
	"maps"

	"github.com/prometheus/client_golang/prometheus"
)

var outdatedDesc = prometheus.NewDesc("godwit_schema_outdated",
	"1: the operator does nothing under this schema. It lacks something, cannot be read, or has just changed. "+
		"0: it is as this version needs it.", []string{"schema"}, nil)

var _ prometheus.Collector = (*Guard)(nil)

// Describe implements prometheus.Collector.
func (g *Guard) Describe(to chan<- *prometheus.Desc) { to <- outdatedDesc }

// Collect implements prometheus.Collector. It tells of the latest look at each schema, and looks at none.
func (g *Guard) Collect(to chan<- prometheus.Metric) {
	g.mu.Lock()
	last := maps.Clone(g.last)
	g.mu.Unlock()
	for name, err := range last {
		v := 0.0
		if err != nil {
			v = 1
		}
		to <- prometheus.MustNewConstMetric(outdatedDesc, prometheus.GaugeValue, v, name)
	}
}
