// Package golden is a node's view of the golden snapshots in its store: which one serves a VM,
// and the tables of their pages that the node has made. A table lies in memory, since it has
// keys, and is never needed: without it a snapshot is larger.
package golden

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"

	"godwit.dev/godwit/api/config"
	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/store"
	"godwit.dev/godwit/snapshot/worker"
)

// Shelf finds, lists, reads and deletes golden snapshots.
type Shelf struct {
	Config *config.Config
	// Store is how a repository is reached, with this node's credentials.
	Store func(repository string) store.Config
	// Worker reads foreign bytes.
	Worker func() *worker.Client

	patience time.Duration // with one that is read; 0: readBound

	mu      sync.Mutex
	reading map[digest.Digest]chan struct{} // closed when its table is made, or is not
}

// Repository where they lie. FailedPrecondition: the node has no store.
func (s *Shelf) Repository() (string, error) {
	switch cfg := s.Config.Registry; {
	case cfg.Layout != "":
		return snapshot.GoldenRepository(store.LayoutPrefix + cfg.Layout), nil
	case cfg.Repository != "":
		return snapshot.GoldenRepository(cfg.Repository), nil
	}
	return "", fmt.Errorf("golden snapshots: no registry.repository and no registry.layout is configured: %w",
		errdefs.ErrFailedPrecondition)
}

func (s *Shelf) place() (store.Store, error) {
	repository, err := s.Repository()
	if err != nil {
		return nil, err
	}
	return store.Open(s.Store(repository))
}

// Find answers the digest of the golden snapshot of an image that has most in common with a
// VM; empty: there is none, or the node has no store.
func (s *Shelf) Find(ctx context.Context, image string, vm *machinev1.QueryResponse) (string, error) {
	st, err := s.place()
	if errdefs.IsFailedPrecondition(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	tags, err := st.Tags(ctx)
	if errdefs.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	tag := snapshot.Nearest(tags, snapshot.GoldenInfo{
		Image: digest.Digest(image), VMM: vm.GetVmm(), Kernel: vm.GetKernel(), Memory: vm.GetMemory(),
		VCPUs: int(vm.GetVcpus()),
	})
	if tag == "" {
		return "", nil
	}
	info, err := st.Stat(ctx, store.Manifest(tag))
	if errdefs.IsNotFound(err) {
		return "", nil // removed since
	}
	return info.Digest.String(), err
}

// List answers those of the store. Without a store there are none.
func (s *Shelf) List(ctx context.Context) ([]*nodev1.TemplateInfo, error) {
	st, err := s.place()
	if err != nil {
		return nil, err
	}
	list, err := snapshot.ListGolden(ctx, st)
	if err != nil {
		return nil, err
	}
	used := map[string]time.Time{}
	entries, err := s.tables().List()
	for _, e := range entries {
		used[e.Name] = e.Used
	}
	out := make([]*nodev1.TemplateInfo, 0, len(list))
	for _, l := range list {
		info := &nodev1.TemplateInfo{
			Kind: nodev1.TemplateKind_TEMPLATE_KIND_IMAGE, Name: l.Digest.String(), Tag: l.Tag, Image: l.Info.Name,
			ImageDigest: l.Info.Image.String(),
			Vmm:         l.Info.VMM, Kernel: l.Info.Kernel, Memory: l.Info.Memory, Vcpus: uint32(l.Info.VCPUs),
			CreatedUnixNano: l.Created.UnixNano(), Bytes: l.Size,
		}
		if at, ok := used[l.Digest.Encoded()]; ok {
			info.UsedUnixNano = at.UnixNano()
		}
		out = append(out, info)
	}
	return out, err
}

// Remove deletes one. Snapshots that refer to its pages keep them.
func (s *Shelf) Remove(ctx context.Context, t *nodev1.TemplateInfo) error {
	st, err := s.place()
	if err != nil {
		return err
	}
	return s.drop(ctx, st, digest.Digest(t.GetName()), t.GetTag())
}

func (s *Shelf) drop(ctx context.Context, st store.Store, d digest.Digest, tag string) error {
	if err := store.CheckDigest(d); err != nil {
		return err
	}
	if err := s.forget(d.Encoded()); err != nil {
		return err
	}
	return snapshot.DropGolden(ctx, st, d, tag)
}

// Push brings one, verified, to where the nodes of another registry look for it: below to,
// which is a registry.repository, or oci-layout: and a registry.layout.
func (s *Shelf) Push(ctx context.Context, t *nodev1.TemplateInfo, to string) (*nodev1.TemplatePushed, error) {
	repository, err := s.Repository()
	if err != nil {
		return nil, err
	}
	there := s.Store(snapshot.GoldenRepository(to))
	st, err := store.Open(there)
	if err != nil {
		return nil, err
	}
	replaced := s.replacing(ctx, st)
	done, err := s.Worker().Copy(ctx, worker.CopyJob{
		From: worker.Place{Store: s.Store(repository), Keys: worker.KeysOf(s.Config), Digest: digest.Digest(t.GetName())},
		To:   there, Tag: t.GetTag(), Memory: int64(s.Config.Worker.Memory), Golden: true,
	}, nil)
	if err != nil {
		return nil, err
	}
	replaced(ctx, done.Digest)
	return &nodev1.TemplatePushed{Template: t, Repository: there.Repository, Tag: done.Tag, Bytes: done.Sent,
		Total: done.Total}, nil
}

// Replacing notes which golden snapshots there are; the function that it answers deletes the
// one whose tag another has taken since.
func (s *Shelf) Replacing(ctx context.Context) func(ctx context.Context, digest string) {
	st, err := s.place()
	if err != nil {
		return func(context.Context, string) {}
	}
	replaced := s.replacing(ctx, st)
	return func(ctx context.Context, d string) { replaced(ctx, digest.Digest(d)) }
}

// replacing is Replacing in a store. Without a tag the old one would stay for ever. Where the
// store refuses, it does.
func (s *Shelf) replacing(ctx context.Context, st store.Store) func(context.Context, digest.Digest) {
	before := tagged(ctx, st)
	return func(ctx context.Context, d digest.Digest) {
		now := tagged(ctx, st)
		for tag, old := range before {
			if old == d || now[tag] != d {
				continue
			}
			if err := s.drop(ctx, st, old, ""); err != nil {
				slog.WarnContext(ctx, "the golden snapshot that was replaced stays", "tag", tag, "digest", old, "error", err)
			}
		}
	}
}

// tagged are the golden snapshots of a store by their tags. What cannot be answered is not
// replaced.
func tagged(ctx context.Context, st store.Store) map[string]digest.Digest {
	all := map[string]digest.Digest{}
	tags, err := st.Tags(ctx)
	for _, tag := range tags {
		info, e := st.Stat(ctx, store.Manifest(tag))
		if e == nil {
			all[tag] = info.Digest
		} else if !errdefs.IsNotFound(e) {
			err = errors.Join(err, e)
		}
	}
	if err != nil && !errdefs.IsNotFound(err) {
		slog.WarnContext(ctx, "look for golden snapshots", "error", err)
	}
	return all
}
