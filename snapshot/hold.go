package snapshot

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	digest "github.com/opencontainers/go-digest"
	ocispecs "github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"godwit.dev/godwit/snapshot/store"
)

// HoldType marks a manifest that is no snapshot: it keeps packs of one under way.
const HoldType = "application/vnd.godwit.hold.v1"

var versioned = ocispecs.Versioned{SchemaVersion: 2}

// HoldTag is the tag of what holds the packs of a capture; Tag is that of the snapshot.
func (r Ref) HoldTag() string {
	return "p" + strconv.FormatUint(r.Generation, 10) + "-" + r.Operation
}

// Hold keeps packs of a capture that takes long: a registry keeps a blob only while a
// tagged manifest of its repository lists it, and collects others after an hour or two.
// It is of one goroutine at a time.
type Hold struct {
	store store.Store
	ref   Ref
	last  digest.Digest // of the manifest that the tag names; empty: none
}

// NewHold is of the capture of ref. Nothing is asked of the store yet.
func NewHold(st store.Store, ref Ref) *Hold { return &Hold{store: st, ref: ref} }

// Keep makes the tag list these blobs, all that have been pushed so far. Call it now and
// then: every half an hour is often enough for the registries that are known. The
// manifest before it is deleted, if the store lets it.
func (h *Hold) Keep(ctx context.Context, blobs []v1.Descriptor) error {
	empty := v1.DescriptorEmptyJSON
	if err := h.store.Put(ctx, store.Blob(empty.Digest), store.Bytes(empty.Data, empty.Digest)); err != nil {
		return fmt.Errorf("hold packs of %s: %w", h.ref.VM, err)
	}
	data, err := json.Marshal(v1.Manifest{
		Versioned: versioned, MediaType: v1.MediaTypeImageManifest, ArtifactType: HoldType, Annotations: h.ref.annotations(),
		Config: v1.Descriptor{MediaType: empty.MediaType, Digest: empty.Digest, Size: empty.Size},
		Layers: append([]v1.Descriptor{}, blobs...),
	})
	if err != nil {
		return fmt.Errorf("hold packs of %s: %w", h.ref.VM, err)
	}
	c := store.Bytes(data, digest.FromBytes(data))
	c.MediaType = v1.MediaTypeImageManifest
	if err := h.store.Put(ctx, store.Manifest(h.ref.HoldTag()), c); err != nil {
		return fmt.Errorf("hold packs of %s: %w", h.ref.VM, err)
	}
	before := h.last
	h.last = c.Digest
	if before != "" && before != c.Digest {
		_ = h.store.Delete(ctx, before.String()) // without a tag it holds nothing
	}
	return nil
}

// Release drops the hold, once the snapshot's own manifest stands or the capture has been
// given up. What it cannot delete the scan finds later: an operation that is over needs
// no hold.
func (h *Hold) Release(ctx context.Context) error {
	if h.last == "" {
		return nil
	}
	if err := drop(ctx, h.store, h.last, h.ref.HoldTag()); err != nil {
		return err
	}
	h.last = ""
	return nil
}
