package client

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"path"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/archive/compression"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"godwit.dev/godwit/api/config"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/internal/changes"
)

// FileChange is a path of a VM that differs from its image. Kind is A, C or D, as of docker diff.
type FileChange struct {
	Kind string `json:"kind"`
	Path string `json:"path"`
}

// CommitOptions are said of the new image in its history.
type CommitOptions struct{ Author, Message string }

// Diff lists what the files of a VM that runs differ in from its image. Mounts are left out.
func (c *Client) Diff(ctx context.Context, vm *nodev1.VM) ([]FileChange, error) {
	ctx, done, err := c.leased(ctx, vm.GetNamespace())
	if err != nil {
		return nil, err
	}
	defer done()
	own, err := c.origin(ctx, vm)
	if err != nil {
		return nil, err
	}
	all := []FileChange{}
	return all, c.compare(ctx, own, func(change changes.Change) error {
		all = append(all, FileChange{Kind: string(change.Kind), Path: change.Path})
		return nil
	})
}

// Commit makes an image of a VM that runs: that of the VM, and one layer more with what the VM has changed on its
// disk. Mounts are left out, and so are devices, pipes and sockets. The VM goes on meanwhile.
func (c *Client) Commit(ctx context.Context, vm *nodev1.VM, image string, o CommitOptions) (*Image, error) {
	full, err := ImageName(image)
	if err != nil {
		return nil, err
	}
	ctx, done, err := c.leased(ctx, vm.GetNamespace())
	if err != nil {
		return nil, err
	}
	defer done()
	own, err := c.origin(ctx, vm)
	if err != nil {
		return nil, err
	}
	l, err := c.newLayer(ctx, own)
	if err != nil {
		return nil, fmt.Errorf("commit VM %s: %w", c.name(vm), err)
	}
	img, err := own.with(ctx, l, full, o)
	if err != nil {
		return nil, fmt.Errorf("commit VM %s: %w", c.name(vm), err)
	}
	return imageOf(ctx, img)
}

// origin is the image that a VM was made of.
type origin struct {
	ctr         *containerd.Client
	vm          *nodev1.VM
	manifest    ocispec.Manifest
	apart       []string          // where mounts lie
	annotations map[string]string // of the container
}

// kernelTrees are mounts of every VM.
var kernelTrees = []string{"/proc", "/sys", "/dev"}

func (c *Client) origin(ctx context.Context, vm *nodev1.VM) (*origin, error) {
	if err := c.refusePod(ctx, vm, podExec); err != nil {
		return nil, err
	}
	ctx = within(ctx, vm)
	container, err := c.loaded(ctx, vm)
	if err != nil {
		return nil, err
	}
	info, err := container.Info(ctx, containerd.WithoutRefreshedMetadata)
	if err != nil {
		return nil, c.containerdError("look at VM "+c.name(vm), err)
	}
	oci, err := container.Spec(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the spec of VM %s: %w", c.name(vm), unwrapped(err))
	}
	ctr, err := c.Containerd()
	if err != nil {
		return nil, err
	}
	own := &origin{ctr: ctr, vm: vm, apart: kernelTrees, annotations: oci.Annotations}
	for _, m := range oci.Mounts {
		own.apart = append(own.apart, path.Clean(m.Destination))
	}
	img, err := ctr.ImageService().Get(ctx, info.Image)
	if errdefs.IsNotFound(err) || info.Image == "" {
		return nil, c.noOrigin(vm, info.Image)
	}
	if err != nil {
		return nil, c.containerdError("look for image "+info.Image, err)
	}
	own.manifest, err = images.Manifest(ctx, ctr.ContentStore(), img.Target, platforms.Default())
	if err != nil {
		return nil, fmt.Errorf("read image %s: %w", info.Image, unwrapped(err))
	}
	return own, nil
}

// noOrigin says that a VM cannot be compared.
func (c *Client) noOrigin(vm *nodev1.VM, image string) error {
	p := &Problem{What: fmt.Sprintf("It is not known what %s has changed.", c.name(vm)),
		Why:    "Its container names no image, as that of a VM that came from another node.",
		Remedy: fmt.Sprintf("To have all its files: godwit cp %s:/ - >files.tar.", c.name(vm)),
		Cause:  errdefs.ErrFailedPrecondition}
	if image != "" {
		p.Why = "Its image " + image + " is not here any more."
		p.Remedy = fmt.Sprintf("To fetch the image: godwit pull %s. %s", image, p.Remedy)
	}
	return p
}

// base reads the layers of the image.
func (o *origin) base(ctx context.Context) (*changes.Base, error) {
	b := new(changes.Base)
	for _, l := range o.manifest.Layers {
		if err := o.layer(ctx, l, b.Add); err != nil {
			return nil, err
		}
	}
	return b, nil
}

func (o *origin) layer(ctx context.Context, l ocispec.Descriptor, add func(io.Reader) error) error {
	ra, err := o.ctr.ContentStore().ReaderAt(ctx, l)
	if errdefs.IsNotFound(err) {
		return fmt.Errorf("containerd has no layer %s of the image, as it keeps none that it has unpacked. To go on, pull "+
			"the image again: %w", l.Digest, errdefs.ErrFailedPrecondition)
	}
	if err != nil {
		return fmt.Errorf("read layer %s: %w", l.Digest, err)
	}
	defer ra.Close()
	plain, err := compression.DecompressStream(io.NewSectionReader(ra, 0, ra.Size()))
	if err != nil {
		return fmt.Errorf("read layer %s: %w", l.Digest, err)
	}
	defer plain.Close()
	return add(plain)
}

// writableSize is the annotation that asks for another size of the writable disk.
const writableSize = spec.AnnotationPrefix + "writable-size"

// room asks the node what a VM can have of its own. A shim of an older build does not say how large the disk is: then
// it is as large as its container asks for, or as the node makes them.
func (c *Client) room(ctx context.Context, o *origin) (changes.Room, error) {
	cfg, err := c.load()
	if err != nil {
		return changes.Room{}, err
	}
	info, _, err := c.listed(ctx, o.vm)
	asked, _ := config.ParseSize(o.annotations[writableSize]) // 0: none, or one that no shim takes
	disk := cmp.Or(info.GetWritableBytes(), uint64(asked), uint64(cfg.VM.WritableSize))
	return changes.Room{Disk: disk, Memory: info.GetMemory()}, err
}

// compare tells what a VM has changed.
func (c *Client) compare(ctx context.Context, o *origin, tell func(changes.Change) error) error {
	if _, err := c.Task(ctx, o.vm); err != nil { // before the layers are read, which takes time
		return err
	}
	room, err := c.room(ctx, o)
	if err != nil {
		return fmt.Errorf("ask what VM %s can have written: %w", c.name(o.vm), err)
	}
	b, err := o.base(within(ctx, o.vm))
	if err != nil {
		return err
	}
	_, err = pipe(ctx, func(ctx context.Context, w io.Writer) (Copied, error) {
		return c.Pack(ctx, o.vm, "/", ".", w)
	}, func(_ context.Context, r io.Reader) (Copied, error) {
		return Copied{}, b.Compare(r, room, o.apart, tell)
	})
	return err
}
