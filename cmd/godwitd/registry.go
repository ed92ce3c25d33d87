package main

import (
	"context"
	"encoding/json"

	digest "github.com/opencontainers/go-digest"

	"godwit.dev/godwit/api/config"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/cache"
	"godwit.dev/godwit/snapshot/store"
	"godwit.dev/godwit/snapshot/worker"
)

// registry is where this node's snapshots lie, as engine, tasks and node service ask
// for them. One store is opened for each question: credentials may have changed.
type registry struct {
	config *config.Config
	cache  *cache.Cache
	rights rights
}

func newRegistry(cfg *config.Config) *registry {
	return &registry{config: cfg, cache: cache.Open(cfg.PacksDir(), int64(cfg.Cache.Packs))}
}

// repository of a VM's snapshots; empty without a registry.
func (r *registry) repository(rec *nodev1.Record) string {
	cfg := r.config.Registry
	switch {
	case cfg.Layout != "":
		return snapshot.Repository(store.LayoutPrefix+cfg.Layout, rec.GetUid())
	case cfg.Repository != "":
		return snapshot.Repository(cfg.Repository, rec.GetUid())
	default:
		return ""
	}
}

func (r *registry) open(repository string) (store.Store, error) {
	return store.Open(r.store(repository))
}

func (r *registry) store(repository string) store.Config {
	cfg := r.config.Registry
	return store.Config{
		Repository: repository, PlainHTTP: cfg.PlainHTTP, CAFile: cfg.CAFile, DockerConfig: cfg.DockerConfig, HostsDir: cfg.HostsDir,
		Bandwidth: int64(r.config.Worker.Bandwidth),
	}
}

// opened answers what a snapshot says of itself. A worker reads it, with this node's keys:
// godwitd has every right on the node, and the bytes are foreign.
func (r *registry) opened(ctx context.Context, c *worker.Client, repository, dgst string) (*snapshot.Config, error) {
	o, err := c.Open(ctx, worker.OpenJob{Store: r.store(repository), Keys: worker.KeysOf(r.config), Digest: digest.Digest(dgst)})
	if err != nil {
		return nil, err
	}
	return o.Config, nil
}

// Exists implements engine.Snapshots. A snapshot that this node keeps whole is not asked
// for: the record says that it owns the VM, and its bytes are what its digest says. So a VM
// wakes where it slept while the store is away.
func (r *registry) Exists(ctx context.Context, repository, dgst string) (bool, error) {
	if r.cache.Has(repository, snapshot.GoldenBeside(repository), digest.Digest(dgst), snapshot.MediaTypeDisk) {
		return true, nil
	}
	st, err := r.open(repository)
	if err != nil {
		return false, err
	}
	return snapshot.Exists(ctx, st, digest.Digest(dgst))
}

// Accepts implements engine.Snapshots.
func (r *registry) Accepts(ctx context.Context, repository string) error {
	st, err := r.open(repository)
	if err != nil {
		return err
	}
	return snapshot.Accepts(ctx, st)
}

// spec implements tasks.SpecOf. What the node keeps is not asked for.
func (r *registry) spec(ctx context.Context, repository, dgst string) (*spec.Spec, error) {
	c := r.worker()
	c.Cache = r.cache
	config, err := r.opened(ctx, c, repository, dgst)
	if err != nil {
		return nil, err
	}
	return config.Spec, nil
}

// Inspect implements node.Snapshots.
func (r *registry) Inspect(ctx context.Context, repository, dgst string) (manifest, config json.RawMessage, err error) {
	c, err := r.opened(ctx, r.worker(), repository, dgst)
	if err != nil {
		return nil, nil, err
	}
	st, err := r.open(repository)
	if err != nil {
		return nil, nil, err
	}
	manifest, err = store.Read(ctx, st, store.Manifest(dgst), manifestLimit) // as it is: nobody here looks into it
	if err != nil {
		return nil, nil, err
	}
	config, err = json.Marshal(c)
	return manifest, config, err
}

// manifestLimit is what registries take at most.
const manifestLimit = 4 << 20
