package worker

import (
	"log/slog"
	"strings"
	"sync"

	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/cache"
	"godwit.dev/godwit/snapshot/store"
)

// evicting lets one caller of this process evict at a time.
var evicting sync.Mutex

// uses is the repository whose objects a job keeps, and where it is told their directories. A
// job that looks at what the store has, or moves it, keeps nothing.
func (j *job) uses() (repository string, kept *Kept) {
	switch {
	case j.Push != nil:
		return j.Push.Store.Repository, &j.Push.Kept
	case j.Open != nil:
		return j.Open.Store.Repository, &j.Open.Kept
	case j.Fill != nil:
		return j.Fill.Store.Repository, &j.Fill.Kept
	case j.LazyFill != nil:
		return j.LazyFill.Store.Repository, &j.LazyFill.Kept
	case j.Golden != nil:
		return j.Golden.Store.Repository, &j.Golden.Kept
	}
	return "", new(Kept)
}

// join gives a job the part of the cache that is its repository's. What the node's own disk
// has anyway, in a layout, is not kept twice. Without a cache a job goes on.
func (c *Client) join(j *job) *cache.Lease {
	repository, kept := j.uses()
	if c.Cache == nil || repository == "" || strings.HasPrefix(repository, store.LayoutPrefix) {
		return nil
	}
	lease, err := c.Cache.Join(repository, snapshot.GoldenOf(repository))
	if err != nil {
		slog.Warn("the cache of packs is not used", "error", err)
	}
	if lease != nil {
		kept.Cache, kept.Shared = lease.Dir, lease.Shared
	}
	return lease
}

// leave ends that, and has room made for what was kept. The job's answer does not wait for it: a VM may.
func (c *Client) leave(lease *cache.Lease, used *cache.Usage) {
	lease.Close()
	if lease == nil || used == nil {
		return
	}
	if err := c.Cache.Note(*used); err != nil {
		slog.Warn("the figures of the cache are not kept", "error", err)
	}
	if used.UnkeptBytes > 0 {
		slog.Warn("a part of the snapshot is not kept on this node: its next wake fetches that", "bytes", used.UnkeptBytes,
			"reason", used.Unkept)
	}
	if used.KeptBytes > 0 {
		kept := c.Cache
		c.evictions.Go(func() { // it comes after one that is under way, which does not count what this job has let go of
			evicting.Lock()
			defer evicting.Unlock()
			evict(kept)
		})
	}
}

// evict makes room while a job goes on. It must not hold up the job's pause.
func (c *Client) evict() {
	if c.Cache == nil || !evicting.TryLock() {
		return
	}
	kept := c.Cache
	c.evictions.Go(func() {
		defer evicting.Unlock()
		evict(kept)
	})
}

func evict(c *cache.Cache) {
	if err := c.Evict(); err != nil {
		slog.Warn("the cache of packs may be above its limit", "error", err)
	}
}

// keeper is the part of the cache that a job has; nil: none.
func (j *job) keeper(w *answers) *cache.Dir {
	_, kept := j.uses()
	if kept.Cache == "" {
		return nil
	}
	return cache.NewDir(kept.Cache, kept.Shared, func() { w.write(line{Kept: true}) })
}

// withCache returns a store that reads from the cache what is there.
func withCache(st store.Store, kept *cache.Dir) store.Store {
	if kept == nil {
		return st
	}
	return store.Keeping(st, kept)
}
