package main

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"path"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"
	digest "github.com/opencontainers/go-digest"
	"github.com/prometheus/client_golang/prometheus"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/snapshot/cache"
)

// forget deletes what this node keeps of a snapshot that was deleted. What a job uses at the
// moment stays until it is evicted.
func (r *registry) forget(repository, dgst string) {
	if err := r.cache.Forget(repository, digest.Digest(dgst)); err != nil {
		slog.Warn("a deleted snapshot stays in the cache", "repository", repository, "digest", dgst, "error", err)
	}
}

// forgetEvery is how often what is kept is compared with the records of its VMs.
const forgetEvery = 5 * time.Minute

// tendCache drops what is kept of VMs that no record names any more, and keeps the cache
// within its limit: it gives way where the file system fills up. A repository that is not of
// a VM of this store is evicted in its turn.
func (d *daemon) tendCache(ctx context.Context) error {
	r := d.snapshots
	kept, err := r.cache.Repositories()
	if err != nil || len(kept) == 0 {
		return err
	}
	errs := []error{r.cache.Evict()}
	if time.Since(d.forgot) < forgetEvery {
		return errs[0]
	}
	own := r.repository(&nodev1.Record{Uid: "x"})
	asked := slices.DeleteFunc(kept, func(repository string) bool {
		return path.Dir(repository) != path.Dir(own) || uuid.Validate(path.Base(repository)) != nil
	})
	gone, err := d.gone(ctx, asked)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	d.forgot = time.Now()
	for _, repository := range gone {
		if err := r.cache.Drop(repository); err != nil && !errdefs.IsUnavailable(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// gone answers those repositories that no record names. So many are asked for at once as fit a
// message with room to spare.
func (d *daemon) gone(ctx context.Context, kept []string) (gone []string, err error) {
	for some := range slices.Chunk(kept, 1000) {
		req := &nodev1.ListRequest{}
		for _, repository := range some {
			req.Uids = append(req.Uids, path.Base(repository))
		}
		all, err := d.records.List(ctx, req)
		if err != nil {
			return nil, err
		}
		named := map[string]bool{}
		for _, rec := range all.GetRecords() {
			named[d.snapshots.repository(rec)] = true
		}
		for _, repository := range some {
			if !named[repository] {
				gone = append(gone, repository)
			}
		}
	}
	return gone, nil
}

// cacheFigures are read when they are asked for: shims and workers note them, and end.
type cacheFigures struct{ cache *cache.Cache }

var (
	cacheBytes = prometheus.NewDesc("godwit_cache_pack_bytes", "Bytes that this node keeps of snapshots.", nil, nil)
	cacheLimit = prometheus.NewDesc("godwit_cache_pack_limit_bytes", "The most that it may keep (cache.packs).", nil, nil)
	cacheTotal = map[string]*prometheus.Desc{
		"hits":    prometheus.NewDesc("godwit_cache_hits_total", "Objects of snapshots that were read from this node's disk.", nil, nil),
		"misses":  prometheus.NewDesc("godwit_cache_misses_total", "Objects of snapshots that were asked of the store.", nil, nil),
		"hit":     prometheus.NewDesc("godwit_cache_hit_bytes_total", "Bytes of the hits.", nil, nil),
		"kept":    prometheus.NewDesc("godwit_cache_kept_bytes_total", "Bytes that were added.", nil, nil),
		"evicted": prometheus.NewDesc("godwit_cache_evicted_bytes_total", "Bytes that were evicted.", nil, nil),
		"unkept":  prometheus.NewDesc("godwit_cache_unkept_bytes_total", "Bytes that were not kept: the cache was full of what is in use, or its disk full or slow.", nil, nil),
		"damaged": prometheus.NewDesc("godwit_cache_damaged_total", "Objects that were not what their digest says, and thrown away.", nil, nil),
	}
)

// Describe implements prometheus.Collector.
func (c cacheFigures) Describe(out chan<- *prometheus.Desc) {
	out <- cacheBytes
	out <- cacheLimit
	for _, d := range cacheTotal {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c cacheFigures) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v)
	}
	size, limit, err := c.cache.Size()
	if gauge(cacheLimit, float64(limit)); err != nil {
		gauge(cacheBytes, math.NaN())
	} else {
		gauge(cacheBytes, float64(size))
	}
	u, err := c.cache.Usage()
	if err != nil {
		return
	}
	for name, v := range map[string]uint64{
		"hits": u.Hits, "misses": u.Misses, "hit": u.HitBytes, "kept": u.KeptBytes, "evicted": u.EvictedBytes, "unkept": u.UnkeptBytes, "damaged": u.Damaged,
	} {
		out <- prometheus.MustNewConstMetric(cacheTotal[name], prometheus.CounterValue, float64(v))
	}
}
