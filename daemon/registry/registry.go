// Package registry is the store of a node's snapshots, a registry or a directory, as the node's daemon
// uses it: for the engine, for wakes, for godwit snapshot and for the cache of the node.
package registry

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"

	"godwit.dev/godwit/api/config"
	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/cache"
	"godwit.dev/godwit/snapshot/store"
	"godwit.dev/godwit/snapshot/worker"
)

// Registry is where this node's snapshots lie, as engine, tasks and node service ask
// for them. One store is opened for each question: credentials may have changed.
type Registry struct {
	Config *config.Config
	Cache  *cache.Cache
	Logins store.Logins // nil: this node's own login counts everywhere
	rights allRights
	fresh  fresh
	forgot time.Time // when MaintainCache looked at all records
}

func New(cfg *config.Config) *Registry {
	return &Registry{Config: cfg, Cache: cache.Open(cfg.PacksDir(), int64(cfg.Cache.Packs))}
}

// Prefix is below what the repositories of this node's VMs lie; empty without a registry.
func Prefix(cfg *config.Config) string {
	if cfg.Registry.Layout != "" {
		return store.LayoutPrefix + cfg.Registry.Layout
	}
	return cfg.Registry.Repository
}

// OwnText says whose the store is that a node has without configuration.
const OwnText = ", of this node alone: a wake on another node needs registry.repository"

// Elsewhere refuses the snapshot that another node has made in its own store: it can be read there alone. Where this
// node shares a directory with others, the directory is asked in its turn.
func (r *Registry) Elsewhere(ctx context.Context, vm *nodev1.VM, ref *nodev1.SnapshotRef) error {
	dir, layout := strings.CutPrefix(ref.GetRepository(), store.LayoutPrefix)
	own := r.Config.Registry.Layout
	shared := own != "" && !r.Config.Registry.Own && strings.HasPrefix(dir, own)
	if !layout || shared || ref.GetNode() == "" || ref.GetNode() == r.Config.Node {
		return nil
	}
	if there, err := r.Exists(ctx, ref.GetRepository(), ref.GetDigest()); err == nil && there {
		return nil
	}
	name := vm.GetNamespace() + "/" + vm.GetId()
	return fmt.Errorf("%s sleeps in node %s's own store, %s, which no other node reads. To wake it: godwit wake %s on "+
		"node %s. To wake VMs on any node: set registry.repository to the same registry on all nodes: %w", name,
		ref.GetNode(), dir, name, ref.GetNode(), errdefs.ErrFailedPrecondition)
}

// Repository of a VM's snapshots; empty without a registry. What its record says counts.
func (r *Registry) Repository(rec *nodev1.Record) string {
	return record.Repository(rec, Prefix(r.Config))
}

// Open opens the repository of a VM.
func (r *Registry) Open(ctx context.Context, repository string) (store.Store, error) {
	cfg, err := r.of(ctx, repository, nodev1.Use_USE_STORE)
	if err != nil {
		return nil, err
	}
	return store.Open(cfg)
}

// StoreConfig is that of a repository of no VM: this node's own login counts.
func (r *Registry) StoreConfig(repository string) store.Config {
	return store.ConfigOf(r.Config, repository)
}

// of says how to reach the repository of a VM. What reads content gets the keys, too.
func (r *Registry) of(ctx context.Context, repository string, use nodev1.Use) (store.Config, error) {
	cfg := r.StoreConfig(repository)
	if r.Logins == nil || repository == r.own() || repository == snapshot.GoldenOf(repository) {
		return cfg, nil
	}
	return cfg.WithLogin(ctx, r.Logins, use)
}

// opened answers what a snapshot says of itself. A worker reads it, with this node's keys:
// godwitd has every right on the node, and the bytes are foreign.
func (r *Registry) opened(ctx context.Context, c *worker.Client, repository, dgst string) (*worker.Opened, error) {
	cfg, err := r.of(ctx, repository, nodev1.Use_USE_CONTENT)
	if err != nil {
		return nil, err
	}
	return c.Open(ctx, worker.OpenJob{Store: cfg, Keys: worker.KeysOf(r.Config), Digest: digest.Digest(dgst)})
}

// Keeps reports whether all of a snapshot is on this node.
func (r *Registry) Keeps(repository, dgst string) bool {
	return r.Cache.Has(repository, snapshot.GoldenOf(repository), digest.Digest(dgst), snapshot.MediaTypeDisk)
}

// Exists implements engine.Snapshots. A snapshot that this node keeps whole is not asked
// for: the record says that it owns the VM, and its bytes are what its digest says. So a VM
// wakes where it slept while the store is away.
func (r *Registry) Exists(ctx context.Context, repository, dgst string) (bool, error) {
	if r.Keeps(repository, dgst) {
		return true, nil
	}
	st, err := r.Open(ctx, repository)
	if err != nil {
		return false, err
	}
	return snapshot.Exists(ctx, st, digest.Digest(dgst))
}

// Readable implements engine.Snapshots: manifest, config and index are read, from the store
// alone. The packs were asked for once more before the manifest was written.
func (r *Registry) Readable(ctx context.Context, repository, dgst string) error {
	_, err := r.opened(ctx, r.Worker(), repository, dgst)
	return err
}

// Accepts implements engine.Snapshots.
func (r *Registry) Accepts(ctx context.Context, repository string) error {
	st, err := r.Open(ctx, repository)
	if err != nil {
		return err
	}
	return snapshot.Accepts(ctx, st)
}

// Spec implements tasks.SpecOf. What the node keeps is not asked for, nor what was offered a moment ago.
func (r *Registry) Spec(ctx context.Context, repository, dgst string) (*spec.Spec, error) {
	if o := r.fresh.take(repository, dgst); o != nil {
		return o.Config.Spec, nil
	}
	o, err := r.kept(ctx, repository, dgst)
	if err != nil {
		return nil, err
	}
	return o.Config.Spec, nil
}

func (r *Registry) kept(ctx context.Context, repository, dgst string) (*worker.Opened, error) {
	c := r.Worker()
	c.Cache = r.Cache
	return r.opened(ctx, c, repository, dgst)
}

// Offer is what a source would say of the VM that sleeps as this snapshot.
func (r *Registry) Offer(ctx context.Context, repository, dgst string) (*machinev1.OfferResponse, error) {
	o, err := r.kept(ctx, repository, dgst)
	if err != nil {
		return nil, err
	}
	if o.Config.Spec == nil {
		return nil, fmt.Errorf("snapshot %s describes no VM: %w", dgst, errdefs.ErrInvalidArgument)
	}
	offer := &machinev1.OfferResponse{RamBytes: o.Config.Spec.Memory, DiskBytes: o.Pages - min(o.RAM, o.Pages)}
	if offer.Spec, err = json.Marshal(o.Config.Spec); err != nil {
		return nil, err
	}
	if offer.Facts, err = json.Marshal(o.Config.Facts); err != nil {
		return nil, err
	}
	r.fresh.put(repository, dgst, o)
	return offer, nil
}

// Inspect implements node.Snapshots.
func (r *Registry) Inspect(ctx context.Context, repository, dgst string) (manifest, config json.RawMessage, err error) {
	o, err := r.opened(ctx, r.Worker(), repository, dgst)
	if err != nil {
		return nil, nil, err
	}
	st, err := r.Open(ctx, repository)
	if err != nil {
		return nil, nil, err
	}
	manifest, err = store.Read(ctx, st, store.Manifest(dgst), manifestLimit) // as it is: no code here looks into it
	if err != nil {
		return nil, nil, err
	}
	config, err = json.Marshal(o.Config)
	return manifest, config, err
}

// manifestLimit is what registries take at most.
const manifestLimit = 4 << 20
