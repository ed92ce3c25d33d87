package snapshot

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

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
	d, err := digest.FromReader(io.NewSectionReader(p.src.State, 0, size))
	if err != nil {
		return v1.Descriptor{}, fmt.Errorf("state: %w", err)
	}
	if err := p.store.Put(ctx, store.Blob(d), store.File(p.src.State, d, size)); err != nil {
		return v1.Descriptor{}, err
	}
	p.pushed.Add(uint64(size))
	return v1.Descriptor{MediaType: MediaTypeState, Digest: d, Size: size}, nil
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
		if err := p.store.Put(ctx, o, c); err != nil {
			return fmt.Errorf("disk %s: %w", d.ID, err)
		}
		p.pushed.Add(uint64(size))
	}
	return nil
}

// commit stores index and config, asks for every blob once more, stores the manifest
// and reads it back. A crash before the manifest leaves blobs that nobody refers to.
func (p *push) commit(ctx context.Context, c *capture, state v1.Descriptor) (Receipt, error) {
	p.o.Progress(Progress{Step: "commit"})
	index := c.index()
	blob, err := index.Encode()
	if err != nil {
		return Receipt{}, err
	}
	p.config.Figures.Resident, p.config.Figures.New = c.resident.Load(), c.fresh.Load()
	config, err := json.Marshal(p.config)
	if err != nil {
		return Receipt{}, fmt.Errorf("config: %w", err)
	}
	indexDesc, err := p.putBytes(ctx, MediaTypeIndex, blob)
	if err != nil {
		return Receipt{}, err
	}
	configDesc, err := p.putBytes(ctx, MediaTypeConfig, config)
	if err != nil {
		return Receipt{}, err
	}
	layers := []v1.Descriptor{state, indexDesc}
	for _, pack := range index.Packs {
		layers = append(layers, packDescriptor(pack))
	}
	for _, d := range p.config.Disks {
		layers = append(layers, v1.Descriptor{MediaType: MediaTypeDisk, Digest: d.Digest, Size: d.Size})
	}
	if err := p.verify(ctx, append([]v1.Descriptor{configDesc}, layers...)); err != nil {
		return Receipt{}, err
	}
	return p.putManifest(ctx, configDesc, layers)
}

func (p *push) putBytes(ctx context.Context, mediaType string, data []byte) (v1.Descriptor, error) {
	c := store.Bytes(data, digest.FromBytes(data))
	d := v1.Descriptor{MediaType: mediaType, Digest: c.Digest, Size: c.Size}
	if err := p.store.Put(ctx, store.Blob(c.Digest), c); err != nil {
		return d, err
	}
	p.pushed.Add(uint64(c.Size))
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

func (p *push) putManifest(ctx context.Context, config v1.Descriptor, layers []v1.Descriptor) (Receipt, error) {
	data, err := newManifest(p.o.Ref, config, layers)
	if err != nil {
		return Receipt{}, fmt.Errorf("manifest: %w", err)
	}
	if len(data) > maxManifest {
		return Receipt{}, fmt.Errorf("manifest: %d bytes of at most %d: %w", len(data), maxManifest, errdefs.ErrResourceExhausted)
	}
	c := store.Bytes(data, digest.FromBytes(data))
	c.MediaType = v1.MediaTypeImageManifest
	if err := p.store.Put(ctx, store.Manifest(p.o.Tag), c); err != nil {
		return Receipt{}, err
	}
	if _, err := store.Read(ctx, p.store, store.Manifest(c.Digest.String()), maxManifest); err != nil {
		return Receipt{}, fmt.Errorf("verify: %w", err)
	}
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
