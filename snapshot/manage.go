package snapshot

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"godwit.dev/godwit/snapshot/store"
)

// Exists is the one question whether a snapshot is there: asked by digest, of the store
// that a restore would use. An error is no answer.
func Exists(ctx context.Context, st store.Store, d digest.Digest) (bool, error) {
	if err := store.CheckDigest(d); err != nil {
		return false, err
	}
	_, err := st.Stat(ctx, store.Manifest(d.String()))
	switch {
	case errdefs.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("ask for snapshot %s: %w", d, err)
	}
	return true, nil
}

// Accepts has the store take the image spec's empty blob, two bytes: a store that cannot
// be reached, refuses these credentials or is full says so before a VM is paused for it.
func Accepts(ctx context.Context, st store.Store) error {
	empty := v1.DescriptorEmptyJSON
	if err := st.Put(ctx, store.Blob(empty.Digest), store.Bytes(empty.Data, empty.Digest)); err != nil {
		return fmt.Errorf("ask the store to take a blob: %w", err)
	}
	return nil
}

// Listed is a tag of a repository. Err says why it is no snapshot that this build reads.
type Listed struct {
	Tag    string
	Digest digest.Digest
	Ref    Ref
	Hold   bool   // it holds packs of a capture, see Hold
	Size   uint64 // of all blobs that its manifest lists
	Err    error
}

// List reads the manifest of every tag.
func List(ctx context.Context, st store.Store) ([]Listed, error) {
	tags, err := st.Tags(ctx)
	if err != nil {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	var list []Listed
	for _, tag := range tags {
		data, err := store.Read(ctx, st, store.Manifest(tag), maxManifest)
		if errdefs.IsNotFound(err) {
			continue // deleted since
		}
		if err != nil {
			return nil, fmt.Errorf("list snapshots: %w", err)
		}
		l := Listed{Tag: tag, Digest: digest.FromBytes(data)}
		if l.Hold = l.readHold(data); !l.Hold {
			l.readSnapshot(data)
		}
		list = append(list, l)
	}
	return list, nil
}

func (l *Listed) readSnapshot(data []byte) {
	parts, err := parseManifest(data)
	if err != nil {
		l.Err = err
		return
	}
	l.Ref, l.Size = parts.ref, uint64(len(data))+parts.size()
}

// readHold reports whether the manifest is a hold.
func (l *Listed) readHold(data []byte) bool {
	var m v1.Manifest
	if json.Unmarshal(data, &m) != nil || m.ArtifactType != HoldType {
		return false
	}
	l.Ref, l.Err = parseRef(m.Annotations)
	for _, d := range m.Layers {
		l.Size += uint64(max(0, d.Size))
	}
	return true
}

func (c *contents) size() uint64 {
	n := c.config.Size + c.state.Size + c.index.Size
	for _, d := range c.packs {
		n += d.Size
	}
	for _, d := range c.disks {
		n += d.Size
	}
	return uint64(n)
}
