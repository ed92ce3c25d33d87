package metrics

import (
	"math"

	"github.com/prometheus/client_golang/prometheus"

	"godwit.dev/godwit/snapshot/cache"
)

// CacheFigures are read when they are asked for: shims and workers note them, and end.
type CacheFigures struct{ Cache *cache.Cache }

var (
	cacheBytes = prometheus.NewDesc("godwit_cache_pack_bytes", "Bytes that this node keeps of snapshots.", nil, nil)
	cacheLimit = prometheus.NewDesc("godwit_cache_pack_limit_bytes", "The most that it may keep (cache.packs).", nil, nil)
	cacheTotal = map[string]*prometheus.Desc{
		"hits": prometheus.NewDesc("godwit_cache_hits_total", "Objects of snapshots that were read from this node's disk.",
			nil, nil),
		"misses": prometheus.NewDesc("godwit_cache_misses_total", "Objects of snapshots that were asked of the store.", nil,
			nil),
		"hit":     prometheus.NewDesc("godwit_cache_hit_bytes_total", "Bytes of the hits.", nil, nil),
		"kept":    prometheus.NewDesc("godwit_cache_kept_bytes_total", "Bytes that were added.", nil, nil),
		"evicted": prometheus.NewDesc("godwit_cache_evicted_bytes_total", "Bytes that were evicted.", nil, nil),
		"unkept": prometheus.NewDesc("godwit_cache_unkept_bytes_total",
			"Bytes that were not kept: the cache was full of what is in use, or its disk full or slow.", nil, nil),
		"damaged": prometheus.NewDesc("godwit_cache_damaged_total",
			"Objects that were not what their digest says, and thrown away.", nil, nil),
	}
)

// Describe implements prometheus.Collector.
func (c CacheFigures) Describe(out chan<- *prometheus.Desc) {
	out <- cacheBytes
	out <- cacheLimit
	for _, d := range cacheTotal {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c CacheFigures) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v)
	}
	size, limit, err := c.Cache.Size()
	if gauge(cacheLimit, float64(limit)); err != nil {
		gauge(cacheBytes, math.NaN())
	} else {
		gauge(cacheBytes, float64(size))
	}
	u, err := c.Cache.Usage()
	if err != nil {
		return
	}
	for name, v := range map[string]uint64{
		"hits": u.Hits, "misses": u.Misses, "hit": u.HitBytes, "kept": u.KeptBytes, "evicted": u.EvictedBytes,
		"unkept": u.UnkeptBytes, "damaged": u.Damaged,
	} {
		out <- prometheus.MustNewConstMetric(cacheTotal[name], prometheus.CounterValue, float64(v))
	}
}
