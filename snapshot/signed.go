package snapshot

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"godwit.dev/godwit/snapshot/seal"
	"godwit.dev/godwit/snapshot/sign"
	"godwit.dev/godwit/snapshot/store"
)

// Keys are a node's: what it opens, and whom it believes. The zero value opens what is
// not sealed and asks for no signature.
type Keys struct {
	Locks seal.Locks
	Trust sign.Trust
}

// serve refuses to make what this node itself would refuse to open: the VM would lie in the store in the clear, or
// unsigned, and no node with the same rule would wake it.
func (k *Keys) serve() error {
	switch {
	case k.Locks.Required && !k.Locks.On():
		return fmt.Errorf("sealed snapshots only are taken here (seal.required), and no key seals new ones (keys "+
			"seal.key_files and seal.recipients): %w", errdefs.ErrFailedPrecondition)
	case k.Trust.Required && !k.Trust.Signs():
		return fmt.Errorf("signed snapshots only are taken here (sign.required), and no key signs new ones (key "+
			"sign.key_file): %w", errdefs.ErrFailedPrecondition)
	}
	return nil
}

// How signatures lie in a store: as cosign has them, under a tag that the digest gives.
const (
	mediaTypeSigned     = "application/vnd.dev.cosign.simplesigning.v1+json"
	annotationSignature = "dev.cosignproject.cosign/signature"
	maxSignatures       = 64
	maxSignedText       = 64 << 10
)

// SignatureTag is where the signatures of a snapshot lie. It is a place to look, and
// proves nothing.
func SignatureTag(d digest.Digest) string {
	return strings.Replace(d.String(), ":", "-", 1) + ".sig"
}

// putSignature stores the signature of a manifest that is about to be stored: when the
// snapshot is there, it is signed.
func putSignature(ctx context.Context, st store.Store, keeper store.Keeper, trust *sign.Trust, d digest.Digest) error {
	text, signature, err := trust.Sign(d)
	if err != nil {
		return err
	}
	layer := store.Bytes(text, digest.FromBytes(text))
	config := store.Bytes(v1.DescriptorEmptyJSON.Data, v1.DescriptorEmptyJSON.Digest)
	for _, c := range []store.Content{layer, config} {
		if err := st.Put(ctx, store.Blob(c.Digest), c); err != nil {
			return fmt.Errorf("signature: %w", err)
		}
	}
	data, err := json.Marshal(v1.Manifest{
		Versioned: versioned, MediaType: v1.MediaTypeImageManifest,
		Config: v1.Descriptor{MediaType: v1.MediaTypeImageConfig, Digest: config.Digest, Size: config.Size},
		Layers: []v1.Descriptor{{
			MediaType: mediaTypeSigned, Digest: layer.Digest, Size: layer.Size,
			Annotations: map[string]string{annotationSignature: base64.StdEncoding.EncodeToString(signature)},
		}},
	})
	if err != nil {
		return fmt.Errorf("signature: %w", err)
	}
	m := store.Bytes(data, digest.FromBytes(data))
	m.MediaType = v1.MediaTypeImageManifest
	if err := st.Put(ctx, store.Manifest(SignatureTag(d)), m); err != nil {
		return fmt.Errorf("signature: %w", err)
	}
	keeper.Keep(keptSignature(d), int64(len(data)), store.Part{Data: data})
	keeper.Keep(store.KeptName(store.Blob(layer.Digest)), layer.Size, store.Part{Data: text})
	return nil
}

// keptSignature is where a node keeps the signatures of a snapshot. They prove as much
// there as in the store: a key that is not trusted any more vouches for nothing.
func keptSignature(d digest.Digest) string {
	return store.KeptSignature + strings.Replace(d.String(), ":", "-", 1)
}

// checkSignature refuses a snapshot for which no trusted key vouches, before a
// byte of its manifest is parsed.
func checkSignature(ctx context.Context, st store.Store, trust *sign.Trust, d digest.Digest) error {
	if !trust.Required {
		return nil
	}
	refused := fmt.Errorf("snapshot is not signed by a key that this node trusts (%s; key sign.trusted): %w",
		strings.Join(trust.Keys(), ", "), errdefs.ErrPermissionDenied)
	keeper := store.KeeperOf(st)
	if data, ok := store.HeldAs(st, keptSignature(d), maxManifest); ok {
		if ok, err := vouched(ctx, st, trust, d, data); ok && err == nil {
			return nil
		}
		keeper.Discard(keptSignature(d))
	}
	data, err := store.Read(ctx, st, store.Manifest(SignatureTag(d)), maxManifest)
	if errdefs.IsNotFound(err) {
		return refused
	}
	if err != nil {
		return fmt.Errorf("signature: %w", err)
	}
	ok, err := vouched(ctx, st, trust, d, data)
	if err == nil && !ok {
		err = refused
	}
	if err == nil {
		keeper.Keep(keptSignature(d), int64(len(data)), store.Part{Data: data})
	}
	return err
}

// vouched reports whether one of the signatures that a manifest lists is by a trusted key.
func vouched(ctx context.Context, st store.Store, trust *sign.Trust, d digest.Digest, data []byte) (bool, error) {
	var m v1.Manifest
	if err := json.Unmarshal(data, &m); err != nil || len(m.Layers) > maxSignatures {
		return false, fmt.Errorf("signature manifest: %d layers, %v: %w", len(m.Layers), err, errdefs.ErrPermissionDenied)
	}
	for _, l := range m.Layers {
		signature, err := base64.StdEncoding.DecodeString(l.Annotations[annotationSignature])
		if l.MediaType != mediaTypeSigned || err != nil || l.Size < 0 || l.Size > maxSignedText ||
			store.CheckDigest(l.Digest) != nil {
			continue
		}
		text, err := store.ReadBlob(ctx, st, l.Digest, l.Size)
		if errdefs.IsNotFound(err) || errdefs.IsDataLoss(err) {
			continue // another one may do
		}
		if err != nil {
			return false, fmt.Errorf("signature: %w", err)
		}
		if trust.Verify(d, text, signature) {
			return true, nil
		}
	}
	return false, nil
}

// dropSignature deletes what vouched for a snapshot that has gone.
func dropSignature(ctx context.Context, st store.Store, d digest.Digest) error {
	tag := SignatureTag(d)
	data, err := store.Read(ctx, st, store.Manifest(tag), maxManifest)
	if errdefs.IsNotFound(err) {
		return nil
	}
	var m v1.Manifest
	if err == nil && json.Unmarshal(data, &m) == nil && (m.ArtifactType == ArtifactType || m.ArtifactType == GoldenType) {
		return nil // a snapshot that somebody gave this name: it is deleted under its own
	}
	if err == nil {
		err = drop(ctx, st, digest.FromBytes(data), tag) // not every registry deletes by tag
	}
	if err != nil {
		return fmt.Errorf("delete signature of snapshot %s: %w", d, err)
	}
	return nil
}

// SignatureOf is the digest that a tag of SignatureTag's form is for.
func SignatureOf(tag string) (digest.Digest, bool) {
	hex, ok := strings.CutSuffix(strings.TrimPrefix(tag, "sha256-"), ".sig")
	d := digest.NewDigestFromEncoded(digest.SHA256, hex)
	return d, ok && strings.HasPrefix(tag, "sha256-") && store.CheckDigest(d) == nil
}

// copySignature brings the signatures of a snapshot along, if it has some.
func copySignature(ctx context.Context, from, to store.Store, d digest.Digest) error {
	data, err := store.Read(ctx, from, store.Manifest(SignatureTag(d)), maxManifest)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("signature: %w", err)
	}
	var m v1.Manifest
	if err := json.Unmarshal(data, &m); err != nil || len(m.Layers) > maxSignatures {
		return fmt.Errorf("signature manifest: %d layers, %v: %w", len(m.Layers), err, errdefs.ErrDataLoss)
	}
	for _, l := range append(m.Layers, m.Config) {
		if l.Size < 0 || l.Size > maxSignedText {
			return fmt.Errorf("signature manifest: blob of %d bytes: %w", l.Size, errdefs.ErrDataLoss)
		}
		blob, err := store.ReadBlob(ctx, from, l.Digest, l.Size)
		if err != nil {
			return fmt.Errorf("signature: %w", err)
		}
		if err := to.Put(ctx, store.Blob(l.Digest), store.Bytes(blob, l.Digest)); err != nil {
			return fmt.Errorf("signature: %w", err)
		}
	}
	c := store.Bytes(data, digest.FromBytes(data))
	c.MediaType = v1.MediaTypeImageManifest
	if err := to.Put(ctx, store.Manifest(SignatureTag(d)), c); err != nil {
		return fmt.Errorf("signature: %w", err)
	}
	return nil
}
