package snapshot

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/store"
)

func (p *push) putState(ctx context.Context) (v1.Descriptor, error) {
	size, err := fileSize(p.src.State)
	if err != nil {
		return v1.Descriptor{}, fmt.Errorf("state: %w", err)
	}
	if size > MaxState {
		return v1.Descriptor{}, invalid("state", "%d bytes, at most %d", size, MaxState)
	}
	if p.key != nil {
		data, err := p.sealState(size)
		if err != nil {
			return v1.Descriptor{}, err
		}
		return p.putBytes(ctx, MediaTypeState, data)
	}
	d, err := digest.FromReader(io.NewSectionReader(p.src.State, 0, size))
	if err != nil {
		return v1.Descriptor{}, fmt.Errorf("state: %w", err)
	}
	if err := p.store.Put(ctx, store.Blob(d), store.File(p.src.State, d, size)); err != nil {
		return v1.Descriptor{}, err
	}
	p.pushed.Add(uint64(size))
	if data := make([]byte, min(size, maxKept)); size <= maxKept {
		if _, err := p.src.State.ReadAt(data, 0); err != nil {
			return v1.Descriptor{}, fmt.Errorf("state: %w", err)
		}
		p.kept(store.Blob(d), data)
	}
	return v1.Descriptor{MediaType: MediaTypeState, Digest: d, Size: size}, nil
}

// maxKept is the most of a device state that is read at once, to keep it or to use what is
// kept.
const maxKept = format.MaxPack

// kept keeps on the node what the store has taken.
func (p *push) kept(o store.Object, data []byte) {
	p.o.Keeper.Keep(store.KeptName(o), int64(len(data)), store.Part{Data: data})
}

// putDisks stores read-only disks that the store does not have.
func (p *push) putDisks(ctx context.Context) error {
	for i, d := range p.src.Disks {
		size := p.config.Disks[i].Size
		o := store.Blob(d.Digest)
		info, err := p.store.Stat(ctx, o)
		if err == nil && info.Size == size {
			continue
		}
		if err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("disk %s: %w", d.ID, err)
		}
		c := store.File(d.File, d.Digest, size)
		c.From = d.From
		var sent atomic.Bool // a store that takes it over from there reads nothing
		read := c.Open
		c.Open = func() (io.ReadCloser, error) {
			sent.Store(true)
			return read()
		}
		if err := p.store.Put(ctx, o, c); err != nil {
			return fmt.Errorf("disk %s: %w", d.ID, err)
		}
		if sent.Load() {
			p.pushed.Add(uint64(size))
		}
	}
	return nil
}

// commit stores index and config, whose descriptors come after those of layers. It asks for every blob once more,
// stores the manifest and reads it back. A crash before the manifest leaves blobs that no manifest names.
func (p *push) commit(ctx context.Context, c *capture, layers []v1.Descriptor) (Receipt, error) {
	p.o.Progress(Progress{Step: "commit"})
	index, packs := c.index()
	var large []v1.Descriptor
	for _, pack := range index.Packs {
		p.o.Keeper.Touch(store.KeptName(store.Blob(packDescriptor(pack).Digest)))
		large = append(large, packDescriptor(pack))
	}
	for _, d := range p.config.Disks {
		large = append(large, v1.Descriptor{MediaType: MediaTypeDisk, Digest: d.Digest, Size: d.Size})
	}
	var configDesc, indexDesc v1.Descriptor
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		configDesc, indexDesc, err = p.putIndex(gctx, c, index, packs)
		return err
	})
	// What is there now is there when the manifest is, some milliseconds later.
	g.Go(func() error { return p.verify(gctx, append(large, layers...)) })
	if err := waitGroup(ctx, g); err != nil {
		return Receipt{}, err
	}
	if err := p.verify(ctx, []v1.Descriptor{configDesc, indexDesc}); err != nil {
		return Receipt{}, err
	}
	return p.putManifest(ctx, configDesc, append(append(layers, indexDesc), large...))
}

// putIndex stores config and index at the same time, and the page table of the next snapshot.
func (p *push) putIndex(ctx context.Context, c *capture, index *format.Index, packs []*pack) (own, pages v1.Descriptor,
	err error) {
	blob, err := index.Encode()
	if err != nil {
		return own, pages, err
	}
	if c.table != nil {
		p.receipt.Untabled = c.table.try(c, p.o.Repository, blob, packs)
	}
	if blob, err = p.sealed(blob, aboutIndex); err != nil {
		return own, pages, err
	}
	config, err := p.encodeConfig(packs)
	if err != nil {
		return own, pages, err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		own, err = p.putBytes(gctx, MediaTypeConfig, config)
		return err
	})
	g.Go(func() (err error) {
		pages, err = p.putBytes(gctx, MediaTypeIndex, blob)
		return err
	})
	return own, pages, waitGroup(ctx, g)
}

func (p *push) putBytes(ctx context.Context, mediaType string, data []byte) (v1.Descriptor, error) {
	c := store.Bytes(data, digest.FromBytes(data))
	d := v1.Descriptor{MediaType: mediaType, Digest: c.Digest, Size: c.Size}
	if err := p.store.Put(ctx, store.Blob(c.Digest), c); err != nil {
		return d, err
	}
	p.pushed.Add(uint64(c.Size))
	p.kept(store.Blob(c.Digest), data)
	return d, nil
}

func (p *push) verify(ctx context.Context, blobs []v1.Descriptor) error {
	lost, err := p.missing(ctx, blobs)
	if err != nil {
		return err
	}
	for _, i := range lost {
		// Removed since it was stored or found: the next attempt stores it again.
		return fmt.Errorf("%s %s is gone from the store: %w", blobs[i].MediaType, blobs[i].Digest, errdefs.ErrAborted)
	}
	return nil
}

// manifest is that of a snapshot, or of a golden one.
func (p *push) manifest(config v1.Descriptor, layers []v1.Descriptor) ([]byte, error) {
	if p.o.Make != nil {
		return p.goldenManifest(config, layers)
	}
	return newManifest(p.o.Ref, config, layers)
}

func (p *push) putManifest(ctx context.Context, config v1.Descriptor, layers []v1.Descriptor) (Receipt, error) {
	data, err := p.manifest(config, layers)
	if err != nil {
		return Receipt{}, fmt.Errorf("manifest: %w", err)
	}
	if len(data) > maxManifest {
		return Receipt{}, fmt.Errorf("manifest: %d bytes of at most %d: %w", len(data), maxManifest,
			errdefs.ErrResourceExhausted)
	}
	c := store.Bytes(data, digest.FromBytes(data))
	c.MediaType = v1.MediaTypeImageManifest
	if p.o.Keys.Trust.Signs() {
		if err := putSignature(ctx, p.store, p.o.Keeper, &p.o.Keys.Trust, c.Digest); err != nil {
			return Receipt{}, err
		}
	}
	if err := p.store.Put(ctx, store.Manifest(p.o.Tag), c); err != nil {
		return Receipt{}, err
	}
	if _, err := store.Read(ctx, p.store, store.Manifest(c.Digest.String()), maxManifest); err != nil {
		return Receipt{}, fmt.Errorf("verify: %w", err)
	}
	p.kept(store.Manifest(c.Digest.String()), data)
	p.keeper.release(ctx)
	p.pushed.Add(uint64(c.Size))
	r := p.receipt
	r.Digest, r.Tag, r.Durable = c.Digest, p.o.Tag, time.Now()
	r.Figures = p.config.Figures
	r.Figures.Pushed, r.Figures.Total = p.pushed.Load(), uint64(c.Size+config.Size)
	for _, l := range layers {
		r.Figures.Total += uint64(l.Size)
	}
	return r, nil
}
