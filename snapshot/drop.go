package snapshot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"godwit.dev/godwit/snapshot/store"
)

// Drop deletes a snapshot of the VM of that uid, or a hold of it, by its digest. It deletes the tag too that was
// its root, if it is still its tag: one that has been moved is another snapshot's. What is gone already was
// deleted. A registry that deletes no manifest may still drop the tag. Its signature goes with it. The manifest is
// read first. Where it is another VM's, or no VM's, a *ForeignError says so and nothing is deleted. Where it cannot
// be read, nothing is known, and nothing is deleted either.
func Drop(ctx context.Context, st store.Store, d digest.Digest, tag, uid string) error {
	return dropIf(ctx, st, d, tag, func(data []byte) error {
		var m v1.Manifest
		err := json.Unmarshal(data, &m)
		if got := m.Annotations[AnnotationUID]; err != nil || got == "" || got != uid || m.ArtifactType == GoldenType {
			return &ForeignError{Digest: d, UID: got, Want: uid}
		}
		return nil
	})
}

// DropGolden is Drop for a golden snapshot, which is of no VM.
func DropGolden(ctx context.Context, st store.Store, d digest.Digest, tag string) error {
	return dropIf(ctx, st, d, tag, func(data []byte) error {
		var m v1.Manifest
		if err := json.Unmarshal(data, &m); err != nil || m.ArtifactType != GoldenType {
			return &ForeignError{Digest: d, Want: "golden"}
		}
		return nil
	})
}

// ForeignError says that what was to be deleted is not of whom it was to be deleted for.
type ForeignError struct {
	Digest    digest.Digest
	UID, Want string // of the VM that its manifest names, which may be empty; that was wanted
}

// Error implements error.
func (e *ForeignError) Error() string {
	return fmt.Sprintf("delete snapshot %s: its manifest is of uid %q, not %q: %s", e.Digest, e.UID, e.Want,
		errdefs.ErrFailedPrecondition)
}

// Unwrap gives the class.
func (e *ForeignError) Unwrap() error { return errdefs.ErrFailedPrecondition }

func dropIf(ctx context.Context, st store.Store, d digest.Digest, tag string, mine func(manifest []byte) error) error {
	if err := store.CheckDigest(d); err != nil {
		return err
	}
	data, err := manifestOf(ctx, st, d, tag)
	if err == nil {
		err = mine(data)
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	if err := drop(ctx, st, d, tag); err != nil {
		return err
	}
	return dropSignature(ctx, st, d)
}

// manifestOf reads a manifest by its digest, and where the store has none by that, by its tag.
func manifestOf(ctx context.Context, st store.Store, d digest.Digest, tag string) ([]byte, error) {
	data, err := store.Read(ctx, st, store.Manifest(d.String()), maxManifest)
	if errdefs.IsNotFound(err) && tag != "" {
		if data, err = store.Read(ctx, st, store.Manifest(tag), maxManifest); err == nil && digest.FromBytes(data) != d {
			err = errdefs.ErrNotFound // the tag is another's by now
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read snapshot %s before it is deleted: %w", d, err)
	}
	return data, nil
}

func drop(ctx context.Context, st store.Store, d digest.Digest, tag string) error {
	gone := st.Delete(ctx, d.String())
	if gone != nil && !errdefs.IsNotFound(gone) && !errdefs.IsNotImplemented(gone) {
		return fmt.Errorf("delete snapshot %s: %w", d, gone)
	}
	if tag != "" {
		mine, err := roots(ctx, st, tag, d)
		if err != nil {
			return fmt.Errorf("delete snapshot %s: %w", d, err)
		}
		if !mine {
			return unless(gone, d)
		}
		if err := st.Delete(ctx, tag); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("delete tag %s of snapshot %s: %w", tag, d, err)
		}
		return nil
	}
	return unless(gone, d)
}

// unless answers the refusal of a manifest that no tag stands for.
func unless(gone error, d digest.Digest) error {
	if gone == nil || errdefs.IsNotFound(gone) {
		return nil
	}
	return fmt.Errorf("delete snapshot %s: %w", d, gone)
}

// roots reports whether the tag names the digest.
func roots(ctx context.Context, st store.Store, tag string, d digest.Digest) (bool, error) {
	info, err := st.Stat(ctx, store.Manifest(tag))
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	return err == nil && info.Digest == d, err
}

// Refused reports whether an error of Drop or Rights means that the store lets this node delete nothing, which
// trying again does not change.
func Refused(err error) bool {
	return errdefs.IsPermissionDenied(err) || errdefs.IsNotImplemented(err) || errdefs.IsUnauthorized(err)
}

// Rights are what a store lets this node do, each nil if it does.
type Rights struct {
	Push, Pull, Delete error
}

// Err joins what is missing.
func (r Rights) Err() error { return errors.Join(r.Push, r.Pull, r.Delete) }

// Probe has the store take, give back and delete a manifest without content. It is the
// one question for a right: what a registry answers to a deletion of nothing says little.
// The manifest is that of who asks, one at a time: nodes that ask at once do not meet, and
// where deletes are refused one stays for each.
func Probe(ctx context.Context, st store.Store, who string) Rights {
	if err := Accepts(ctx, st); err != nil {
		return Rights{Push: err, Pull: errNotProbed("pull"), Delete: errNotProbed("delete")}
	}
	tag := "rights-" + digest.FromString(who).Encoded()[:12]
	empty := v1.DescriptorEmptyJSON
	data, err := json.Marshal(v1.Manifest{
		Versioned: versioned, MediaType: v1.MediaTypeImageManifest, ArtifactType: "application/vnd.godwit.probe.v1",
		Config: v1.Descriptor{MediaType: empty.MediaType, Digest: empty.Digest, Size: empty.Size}, Layers: []v1.Descriptor{},
		Annotations: map[string]string{"dev.godwit.node": who},
	})
	if err != nil {
		return Rights{Push: err}
	}
	c := store.Bytes(data, digest.FromBytes(data))
	c.MediaType = v1.MediaTypeImageManifest
	if err := st.Put(ctx, store.Manifest(tag), c); err != nil {
		return Rights{Push: fmt.Errorf("ask the store to take a manifest: %w", err), Pull: errNotProbed("pull"),
			Delete: errNotProbed("delete")}
	}
	var r Rights
	if _, err := store.Read(ctx, st, store.Manifest(c.Digest.String()), maxManifest); err != nil {
		r.Pull = fmt.Errorf("ask the store for a manifest: %w", err)
	}
	if err := drop(ctx, st, c.Digest, tag); err != nil {
		r.Delete = fmt.Errorf("ask the store to delete a manifest: %w", err)
	}
	return r
}

func errNotProbed(right string) error {
	return fmt.Errorf("right to %s: not asked for, nothing can be pushed: %w", right, errdefs.ErrFailedPrecondition)
}
