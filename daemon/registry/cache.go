package registry

import (
	"context"
	"errors"
	"log/slog"
	"path"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
)

// forget deletes what this node keeps of a snapshot that was deleted. What a job uses at the
// moment stays until it is evicted.
func (r *Registry) forget(repository, dgst string) {
	if err := r.Cache.Forget(repository, digest.Digest(dgst)); err != nil {
		slog.Warn("a deleted snapshot stays in the cache", "repository", repository, "digest", dgst, "error", err)
	}
}

// forgetEvery is how often what is kept is compared with the records of its VMs.
const forgetEvery = 5 * time.Minute

// MaintainCache drops what is kept of VMs that no record names any more, and keeps the cache
// within its limit: it gives way where the file system fills up. A repository that is not of
// a VM of this store is evicted in its turn. One caller at a time.
func (r *Registry) MaintainCache(ctx context.Context, records nodev1.RecordsService) error {
	kept, err := r.Cache.Repositories()
	if err != nil || len(kept) == 0 {
		return err
	}
	errs := []error{r.Cache.Evict()}
	if time.Since(r.forgot) < forgetEvery {
		return errs[0]
	}
	own := r.Repository(&nodev1.Record{Uid: "x"})
	asked := slices.DeleteFunc(kept, func(repository string) bool {
		return path.Dir(repository) != path.Dir(own) || !record.IsUID(path.Base(repository))
	})
	gone, err := r.gone(ctx, records, asked)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	r.forgot = time.Now()
	for _, repository := range gone {
		if err := r.Cache.Drop(repository); err != nil && !errdefs.IsUnavailable(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// gone answers those repositories that no record names. So many are asked for at once as fit a
// message with room to spare.
func (r *Registry) gone(ctx context.Context, records nodev1.RecordsService, kept []string) (gone []string, err error) {
	for some := range slices.Chunk(kept, 1000) {
		req := &nodev1.ListRequest{}
		for _, repository := range some {
			req.Uids = append(req.Uids, path.Base(repository))
		}
		all, err := records.List(ctx, req)
		if err != nil {
			return nil, err
		}
		named := map[string]bool{}
		for _, rec := range all.GetRecords() {
			named[r.Repository(&nodev1.Record{Uid: rec.GetUid()})] = true // also of a VM whose record says another place
		}
		for _, repository := range some {
			if !named[repository] {
				gone = append(gone, repository)
			}
		}
	}
	return gone, nil
}
