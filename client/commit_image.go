package client

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/labels"
	"github.com/containerd/errdefs"
	godigest "github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"godwit.dev/godwit/internal/changes"
)

// layer that was written into containerd's store.
type layer struct {
	ocispec.Descriptor
	diffID godigest.Digest
}

// newLayer writes what a VM has changed into containerd's store. What is not whole is not committed there.
func (c *Client) newLayer(ctx context.Context, o *origin) (*layer, error) {
	inside := within(ctx, o.vm)
	w, err := content.OpenWriter(inside, o.ctr.ContentStore(),
		content.WithRef("godwit-commit-"+strings.ToLower(rand.Text()[:16])))
	if err != nil {
		return nil, c.containerdError("write a layer", err)
	}
	defer w.Close()
	size := &counting{Writer: w}
	zip, sum := gzip.NewWriter(size), godigest.Canonical.Digester()
	out := changes.NewLayer(io.MultiWriter(zip, sum.Hash()))
	if err := c.compare(ctx, o, out.Add); err != nil {
		return nil, err
	}
	if err := errors.Join(out.Close(), zip.Close()); err != nil {
		return nil, fmt.Errorf("write layer: %w", err)
	}
	l := &layer{Descriptor: ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip, Digest: w.Digest(),
		Size: size.n}, diffID: sum.Digest()}
	if o.docker() {
		l.MediaType = images.MediaTypeDockerSchema2LayerGzip
	}
	err = w.Commit(inside, l.Size, l.Digest, content.WithLabels(map[string]string{
		labels.LabelUncompressed: l.diffID.String()}))
	if err != nil && !errdefs.IsAlreadyExists(err) {
		return nil, fmt.Errorf("write layer: %w", unwrapped(err))
	}
	return l, nil
}

// counting counts what is written.
type counting struct {
	io.Writer
	n int64
}

func (c *counting) Write(p []byte) (int, error) {
	n, err := c.Writer.Write(p)
	c.n += int64(n)
	return n, err
}

// docker reports whether the image is in docker's format, which the new one then has too.
func (o *origin) docker() bool { return o.manifest.MediaType == images.MediaTypeDockerSchema2Manifest }

// with makes the image that has one layer more, or gives an image of that name the new content.
func (o *origin) with(ctx context.Context, l *layer, name string, opts CommitOptions) (containerd.Image, error) {
	ctx = within(ctx, o.vm)
	store := o.ctr.ContentStore()
	was, err := content.ReadBlob(ctx, store, o.manifest.Config)
	if err != nil {
		return nil, fmt.Errorf("read the configuration of the image: %w", unwrapped(err))
	}
	config, err := extended(was, l.diffID, opts, time.Now())
	if err != nil {
		return nil, err
	}
	m := o.manifest
	m.Versioned, m.Annotations = specs.Versioned{SchemaVersion: 2}, nil
	m.Config = described(m.Config.MediaType, config)
	m.Layers = append(append([]ocispec.Descriptor{}, m.Layers...), l.Descriptor)
	if m.MediaType == "" {
		m.MediaType = ocispec.MediaTypeImageManifest
	}
	text, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	target := described(m.MediaType, text)
	kept := map[string]string{"containerd.io/gc.ref.content.config": m.Config.Digest.String()}
	for i, part := range m.Layers {
		kept[fmt.Sprintf("containerd.io/gc.ref.content.l.%d", i)] = part.Digest.String()
	}
	if err := put(ctx, store, m.Config, config); err != nil {
		return nil, err
	}
	if err := put(ctx, store, target, text, content.WithLabels(kept)); err != nil {
		return nil, err
	}
	img := images.Image{Name: name, Target: target}
	made, err := o.ctr.ImageService().Create(ctx, img)
	if errdefs.IsAlreadyExists(err) {
		made, err = o.ctr.ImageService().Update(ctx, img, "target")
	}
	if err != nil {
		return nil, fmt.Errorf("write image %s: %w", name, unwrapped(err))
	}
	return containerd.NewImage(o.ctr, made), nil
}

func described(mediaType string, data []byte) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: mediaType, Digest: godigest.FromBytes(data), Size: int64(len(data))}
}

func put(ctx context.Context, store content.Store, d ocispec.Descriptor, data []byte, opts ...content.Opt) error {
	err := content.WriteBlob(ctx, store, "godwit-commit-"+d.Digest.String(), bytes.NewReader(data), d, opts...)
	if err != nil {
		return fmt.Errorf("write image: %w", unwrapped(err))
	}
	return nil
}

// extended is an image's configuration with one layer more. What is not known of it stays as it is.
func extended(was []byte, diffID godigest.Digest, o CommitOptions, now time.Time) ([]byte, error) {
	config, history, root := map[string]any{}, []any{}, ocispec.RootFS{}
	parts := struct {
		RootFS  *ocispec.RootFS `json:"rootfs"`
		History *[]any          `json:"history"`
	}{&root, &history}
	if err := errors.Join(json.Unmarshal(was, &config), json.Unmarshal(was, &parts)); err != nil {
		return nil, fmt.Errorf("read the configuration of the image: %w: %w", err, errdefs.ErrDataLoss)
	}
	root.DiffIDs = append(root.DiffIDs, diffID)
	now = now.UTC()
	config["rootfs"], config["created"] = root, now
	config["history"] = append(history, ocispec.History{Created: &now, CreatedBy: "godwit commit", Author: o.Author,
		Comment: o.Message})
	if o.Author != "" {
		config["author"] = o.Author
	}
	return json.Marshal(config)
}
