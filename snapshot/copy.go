package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync/atomic"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/store"
)

// CopyOptions of Copy. The zero value will do.
type CopyOptions struct {
	Tag      string // there; default: as Push would have it
	From     string // repository of the snapshot, if both are of one registry: blobs are mounted
	Memory   int64  // of pack buffers; default 256 MiB
	Progress func(Progress)
}

// Copied says what Copy moved.
type Copied struct {
	Digest digest.Digest `json:"digest"`
	Tag    string        `json:"tag"`
	Sent   uint64        `json:"sent"`  // bytes; the rest was there
	Total  uint64        `json:"total"` // bytes of the snapshot
}

// Copy brings the snapshot into another store, with the same digest. Every frame of every pack, and every other
// blob by its digest, is verified on the way. The manifest is last, so that what fails leaves no snapshot there.
func (s *Snapshot) Copy(ctx context.Context, to store.Store, o CopyOptions) (Copied, error) {
	c := &copier{Snapshot: s, to: to, o: o}
	if c.o.Tag == "" {
		c.o.Tag = s.Config.Ref.Tag()
	}
	if c.o.Progress == nil {
		c.o.Progress = func(Progress) {}
	}
	if c.o.Memory <= 0 {
		c.o.Memory = 256 << 20
	}
	done, err := c.run(ctx)
	if err != nil {
		return Copied{}, fmt.Errorf("copy snapshot %s: %w", s.Digest, err)
	}
	return done, nil
}

// Copy is as that of a Snapshot. Its tag says which image it is of: nodes find it there by that.
func (g *Golden) Copy(ctx context.Context, to store.Store, o CopyOptions) (Copied, error) {
	o.Tag = g.Info.Tag()
	return g.pages.Copy(ctx, to, o)
}

// copier is one run of Copy.
type copier struct {
	*Snapshot
	to   store.Store
	o    CopyOptions
	sent atomic.Uint64
	done atomic.Uint64
}

func (c *copier) run(ctx context.Context) (Copied, error) {
	manifest, err := store.Read(ctx, c.store, store.Manifest(c.Digest.String()), maxManifest)
	if err != nil {
		return Copied{}, err
	}
	if err := Accepts(ctx, c.to); err != nil { // and a layout is made
		return Copied{}, err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(max(1, min(runtime.GOMAXPROCS(0), int(c.o.Memory/format.MaxPack))))
	for i := range c.parts.packs {
		g.Go(func() error { return c.pack(gctx, i) })
	}
	rest := []v1.Descriptor{c.parts.config, c.parts.index}
	if c.parts.state.Digest != "" { // a golden snapshot has none
		rest = append(rest, c.parts.state)
	}
	for _, d := range append(rest, c.parts.disks...) {
		g.Go(func() error { return c.blob(gctx, d) })
	}
	if err := g.Wait(); err != nil {
		return Copied{}, err
	}
	if err := copySignature(ctx, c.store, c.to, c.Digest); err != nil {
		return Copied{}, err
	}
	m := store.Bytes(manifest, c.Digest)
	m.MediaType = v1.MediaTypeImageManifest
	if err := c.to.Put(ctx, store.Manifest(c.o.Tag), m); err != nil {
		return Copied{}, err
	}
	if _, err := store.Read(ctx, c.to, store.Manifest(c.Digest.String()), maxManifest); err != nil {
		return Copied{}, fmt.Errorf("verify: %w", err)
	}
	c.sent.Add(uint64(len(manifest)))
	return Copied{Digest: c.Digest, Tag: c.o.Tag, Sent: c.sent.Load(), Total: c.parts.size() + uint64(len(manifest))}, nil
}

// there reports whether the destination has a blob, whole.
func (c *copier) there(ctx context.Context, d v1.Descriptor) (bool, error) {
	info, err := c.to.Stat(ctx, store.Blob(d.Digest))
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	return err == nil && info.Size == d.Size, err
}

// pack is in memory as a whole: its frames are decoded before it is sent.
func (c *copier) pack(ctx context.Context, i int) error {
	d := c.parts.packs[i]
	data, err := store.ReadRetried(ctx, c.store, d.Digest, d.Size)
	if err != nil {
		return store.Lost("pack", d, err)
	}
	coder := format.Coder{Key: c.keys[i]}
	defer coder.Close()
	first, end := c.index.PackFrames(i)
	for n := first; n < end; n++ {
		f := &c.index.Frames[n]
		if _, err := coder.Decode(f, data[f.Offset:f.Offset+f.Stored]); err != nil {
			return fmt.Errorf("pack %s: %w", d.Digest, err)
		}
	}
	return c.put(ctx, d, store.Bytes(data, d.Digest))
}

// blob goes through without being held.
func (c *copier) blob(ctx context.Context, d v1.Descriptor) error {
	return c.put(ctx, d, store.Content{Digest: d.Digest, Size: d.Size, Open: func() (io.ReadCloser, error) {
		body, err := c.store.Get(ctx, store.Blob(d.Digest))
		if err != nil {
			return nil, store.Lost("blob", d, err)
		}
		return &checked{ReadCloser: body, want: d, sum: digest.SHA256.Digester()}, nil
	}})
}

func (c *copier) put(ctx context.Context, d v1.Descriptor, content store.Content) error {
	ok, err := c.there(ctx, d)
	if err != nil {
		return err
	}
	if !ok {
		content.From = c.o.From
		if err := c.to.Put(ctx, store.Blob(d.Digest), content); err != nil {
			return err
		}
		c.sent.Add(uint64(d.Size))
	}
	c.o.Progress(Progress{Step: "copy", Done: c.done.Add(uint64(d.Size)), Total: c.parts.size()})
	return nil
}

// checked fails at its end if it was not the blob: the destination never sees that end.
type checked struct {
	io.ReadCloser
	want v1.Descriptor
	sum  digest.Digester
	n    int64
}

func (c *checked) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.n += int64(n)
	c.sum.Hash().Write(p[:n])
	ended := errors.Is(err, io.EOF) || c.n >= c.want.Size // a destination may read no further than that
	if ended && (c.n != c.want.Size || c.sum.Digest() != c.want.Digest) {
		if store.Reject(c.ReadCloser) { // the next try asks the next host
			return 0, fmt.Errorf("blob %s: a mirror has sent something else: %w", c.want.Digest, errdefs.ErrUnavailable)
		}
		return 0, fmt.Errorf("blob %s: %d bytes of %d, or another digest: %w", c.want.Digest, c.n, c.want.Size,
			errdefs.ErrDataLoss)
	}
	return n, err
}
