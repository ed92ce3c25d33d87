package main

import (
	"context"
	"encoding/json"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"

	"godwit.dev/godwit/api/config"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/store"
	"godwit.dev/godwit/snapshot/worker"
)

// registry is where this node's snapshots lie, as engine, tasks and node service ask
// for them. One store is opened for each question: credentials may have changed.
type registry struct{ config *config.Config }

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
	return store.Config{Repository: repository, PlainHTTP: cfg.PlainHTTP, CAFile: cfg.CAFile, DockerConfig: cfg.DockerConfig}
}

// Exists implements engine.Snapshots.
func (r *registry) Exists(ctx context.Context, repository, dgst string) (bool, error) {
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

// probe asks for the rights that a hibernate needs, in a repository beside the VMs'.
func (r *registry) probe(ctx context.Context) (string, error) {
	repository := r.repository(&nodev1.Record{Uid: probed})
	if repository == "" {
		return "none is configured: no VM of this node can sleep", nil
	}
	return repository, r.Accepts(ctx, repository)
}

// probed is the repository of doctor's question.
const probed = "doctor"

// DropTag implements engine.Snapshots and node.Snapshots.
func (r *registry) DropTag(ctx context.Context, repository, tag string) error {
	st, err := r.open(repository)
	if err != nil {
		return err
	}
	if err := snapshot.DeleteTag(ctx, st, tag); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	return nil
}

// spec implements tasks.SpecOf.
func (r *registry) spec(ctx context.Context, repository, dgst string) (*spec.Spec, error) {
	st, err := r.open(repository)
	if err != nil {
		return nil, err
	}
	s, err := snapshot.Open(ctx, st, digest.Digest(dgst), nil)
	if err != nil {
		return nil, err
	}
	return s.Config.Spec, nil
}

// Inspect implements node.Snapshots.
func (r *registry) Inspect(ctx context.Context, repository, dgst string) (manifest, config json.RawMessage, err error) {
	st, err := r.open(repository)
	if err != nil {
		return nil, nil, err
	}
	s, err := snapshot.Open(ctx, st, digest.Digest(dgst), nil)
	if err != nil {
		return nil, nil, err
	}
	manifest, err = store.Read(ctx, st, store.Manifest(dgst), manifestLimit)
	if err != nil {
		return nil, nil, err
	}
	config, err = json.Marshal(s.Config)
	return manifest, config, err
}

// manifestLimit is what registries take at most.
const manifestLimit = 4 << 20

// Verify implements node.Snapshots. A process of its own reads the snapshot: it needs
// more memory than a daemon has, and the bytes are foreign.
func (r *registry) Verify(ctx context.Context, repository, dgst string) (*nodev1.VerifyResponse, error) {
	cfg := r.config
	w := worker.Client{Command: []string{binary(), workerRole}}
	v, err := w.Verify(ctx, worker.VerifyJob{Store: r.store(repository), Digest: digest.Digest(dgst), Memory: int64(cfg.Worker.Memory)}, nil)
	if err != nil {
		return nil, err
	}
	resp := &nodev1.VerifyResponse{Packs: uint32(v.Packs), Frames: uint32(v.Frames), Bytes: v.Bytes, More: uint32(v.More)}
	for _, b := range v.Bad {
		resp.Bad = append(resp.Bad, &nodev1.BadPart{Part: b.Part, Reason: b.Reason})
	}
	return resp, nil
}
