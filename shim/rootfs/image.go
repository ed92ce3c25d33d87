package rootfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/containerd/api/types"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/shim/rootfs/erofs"
)

// PrepareImage makes or finds the read-only disks for the mounts of a container whose writes go elsewhere, topmost
// first: one disk wherever it can be merged. dst has neither Kept nor sizes. The caller may go away while a disk is
// built: the build goes on, and the next call finds what it has made.
func PrepareImage(ctx context.Context, mounts []*types.Mount, dst Paths) ([]Disk, error) {
	p, err := readPlan(mounts)
	linked := filepath.Join(dst.Dir, "layers")
	if err == nil {
		err = os.MkdirAll(linked, 0o700)
	}
	if err != nil {
		return nil, fmt.Errorf("prepare image: %w", err)
	}
	if dst.Program.Name != "" && p.fresh(fs.ErrNotExist) && dst.Cache.lacks(ctx, mounts, dst.Program) {
		return nil, dst.Program.missing()
	}
	disks, err := finish(ctx, func(ctx context.Context) ([]Disk, error) { return p.image(ctx, dst.Cache, linked) })
	if err != nil {
		return nil, fmt.Errorf("prepare image: %w", err)
	}
	return disks, nil
}

// finish does something to its end, also where its caller does not wait for that.
func finish(ctx context.Context, do func(context.Context) ([]Disk, error)) (disks []Disk, err error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	done := make(chan struct{})
	var made []Disk
	var failed error
	go func() {
		defer close(done)
		made, failed = do(context.WithoutCancel(ctx))
	}()
	select {
	case <-done:
		return made, failed
	case <-ctx.Done():
		return nil, fmt.Errorf("a disk of the image is still being made, and the next attempt finds it: %w",
			context.Cause(ctx))
	}
}

func (p *plan) image(ctx context.Context, cache *Cache, linked string) ([]Disk, error) {
	var disks []Disk
	dirs, immutable := p.dirs, !p.unique && !p.bound
	if p.upper != "" {
		empty, err := checkUpper(p.upper)
		switch {
		case err != nil:
			return nil, err
		case empty:
		case len(p.files) > 0:
			d, err := cache.dirs(ctx, []string{p.upper}, false, raw, linked)
			if err != nil {
				return nil, err
			}
			disks = append(disks, d)
		default: // overlayfs reads whiteouts and opaque marks from any layer
			dirs, immutable = append([]string{p.upper}, dirs...), false
		}
	}
	if len(p.files) > 0 {
		below, err := cache.images(ctx, p.files, linked)
		return append(disks, below...), err
	}
	d, err := cache.dirs(ctx, dirs, immutable, p.view(), linked)
	return append(disks, d), err
}

// images makes disks of files that containerd may remove with a container, topmost first. What is used is this
// package's own: a disk stays plugged when its first container is gone.
func (c *Cache) images(ctx context.Context, files []image, linked string) ([]Disk, error) {
	foreign := slices.ContainsFunc(files, func(f image) bool { return f.fsType != "erofs" })
	if len(files) == 1 && !foreign {
		d, err := c.copied(ctx, files[0], linked)
		return []Disk{d}, err
	}
	var d Disk
	var err error
	if foreign {
		d, err = c.unpacked(ctx, files, linked)
	} else {
		d, err = c.merged(ctx, files, linked)
	}
	if err == nil || foreign || !errors.Is(err, unix.ENODEV) {
		return []Disk{d}, err
	}
	// This kernel mounts no erofs. The guest's does, one disk for each layer.
	if len(files) > MaxDisks {
		return nil, fmt.Errorf("%d layers of an image are not joined, because the host's kernel has no erofs, and a VM "+
			"has at most %d disks for them: load the module erofs: %w", len(files), MaxDisks, errdefs.ErrResourceExhausted)
	}
	disks := make([]Disk, len(files))
	for i, f := range files {
		if disks[i], err = c.copied(ctx, f, linked); err != nil {
			return nil, err
		}
	}
	return disks, nil
}

// copied is an erofs image as it is.
func (c *Cache) copied(ctx context.Context, img image, linked string) (Disk, error) {
	d, err := c.file(ctx, img)
	if err != nil {
		return Disk{}, err
	}
	return c.get(ctx, hashKey("copied", d.Digest), linked, func(w io.Writer, _ string) error {
		f, err := os.Open(img.path)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(w, interruptible{ctx, f})
		return err
	})
}

// unpacked is what images that one container alone has look like from above.
func (c *Cache) unpacked(ctx context.Context, images []image, linked string) (Disk, error) {
	key, err := fileKey(images)
	if err != nil {
		return Disk{}, err
	}
	return c.get(ctx, hashKey("unpacked", key), linked, func(w io.Writer, scratch string) error {
		return inPrivateNamespace(func() error {
			return useImages(ctx, images, scratch, func(dir string) error { return erofs.Write(ctx, w, dir) })
		})
	})
}

// PrepareScratch makes the one writable disk of a pod in the directory of its VM, or finds it there.
func PrepareScratch(dir string, size int64) (path string, actual int64, err error) {
	path = filepath.Join(dir, writableName)
	actual, err = makeWritable(path, size)
	if err != nil {
		return "", 0, fmt.Errorf("prepare disk of a pod: %w", err)
	}
	return path, actual, nil
}
