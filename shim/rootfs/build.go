package rootfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/shim/rootfs/erofs"
)

// build makes or finds the read-only disks, links them into linked and returns them.
func (p *plan) build(ctx context.Context, cache *Cache, linked string) (Layers, error) {
	var l Layers
	add := func(d Disk, err error) error {
		if err == nil {
			l.Disks = append(l.Disks, d)
		}
		return err
	}
	if p.upper != "" {
		empty, err := checkUpper(p.upper)
		if err != nil {
			return l, err
		}
		if !empty && p.mapped {
			return l, fmt.Errorf("upperdir %s has files with ids of the host, and its lower directories have ids of the "+
				"container: commit the container to an image first: %w", p.upper, errdefs.ErrNotImplemented)
		}
		if !empty {
			// The guest's overlayfs reads whiteouts and opaque marks from any layer.
			if err := add(cache.dirs(ctx, []string{p.upper}, false, raw, linked)); err != nil {
				return l, err
			}
		}
	}
	if len(p.dirs) > 0 {
		if err := add(cache.dirs(ctx, p.dirs, !p.unique && !p.bound, p.view(), linked)); err != nil {
			return l, err
		}
	}
	files := p.files
	var below []image
	if len(files) > MaxDisks {
		files, below = files[:MaxDisks-1], files[MaxDisks-1:]
	}
	for _, f := range files {
		if err := add(cache.file(ctx, f)); err != nil {
			return l, err
		}
	}
	if len(below) > 0 {
		if err := add(cache.merged(ctx, below, linked)); err != nil {
			return l, err
		}
	}
	return l, nil
}

// view is how the directories become one tree: as they lie there, or as overlayfs
// shows them.
func (p *plan) view() view {
	if p.unique {
		return raw
	}
	return merged
}

type view func(ctx context.Context, dirs []string, scratch string, use func(dir string) error) error

func raw(_ context.Context, dirs []string, _ string, use func(string) error) error {
	return use(dirs[0])
}

func merged(ctx context.Context, dirs []string, scratch string, use func(string) error) error {
	return inPrivateNamespace(func() error { return useOverlay(ctx, dirs, scratch, use) })
}

// dirs builds the image of a chain of directories. Only a chain that is immutable is
// looked up and remembered.
func (c *Cache) dirs(ctx context.Context, dirs []string, immutable bool, v view, linked string) (Disk, error) {
	key := ""
	if immutable {
		var err error
		if key, err = chainKey(dirs); err != nil {
			return Disk{}, err
		}
	}
	return c.get(ctx, key, linked, func(w io.Writer, scratch string) error {
		return v(ctx, dirs, scratch, func(dir string) error { return erofs.Write(ctx, w, dir) })
	})
}

// merged builds one image of several, topmost first.
func (c *Cache) merged(ctx context.Context, images []image, linked string) (Disk, error) {
	var keys []string
	for _, f := range images {
		d, err := c.file(ctx, f)
		if err != nil {
			return Disk{}, err
		}
		keys = append(keys, d.Digest)
	}
	return c.get(ctx, hashKey("merged", keys...), linked, func(w io.Writer, scratch string) error {
		return inPrivateNamespace(func() error {
			return useImages(ctx, images, scratch, func(dir string) error { return erofs.Write(ctx, w, dir) })
		})
	})
}

// chainKey names an immutable chain on this node: containerd writes a committed
// snapshot's directory never again, and inode, device and birth tell it from another
// one that got the same path.
func chainKey(dirs []string) (string, error) {
	var parts []string
	for _, dir := range dirs {
		id, err := identity(dir)
		if err != nil {
			return "", err
		}
		parts = append(parts, id)
	}
	return hashKey("chain", parts...), nil
}

func identity(path string) (string, error) {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st); err != nil {
		return "", &os.PathError{Op: "statx", Path: path, Err: err}
	}
	return fmt.Sprintf("%s %d:%d %d %d.%09d %d.%09d %d.%09d %d", path, st.Dev_major, st.Dev_minor, st.Ino,
		st.Btime.Sec, st.Btime.Nsec, st.Ctime.Sec, st.Ctime.Nsec, st.Mtime.Sec, st.Mtime.Nsec, st.Size), nil
}

// checkUpper reports whether upperdir is empty; it may be missing where containerd left
// the mkdir to the shim. Content that only the overlay mount which wrote it could read
// again is refused.
func checkUpper(dir string) (empty bool, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil || len(entries) == 0 {
		return err == nil, err
	}
	return false, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		for _, name := range []string{"trusted.overlay.redirect", "trusted.overlay.metacopy"} {
			_, err := unix.Lgetxattr(path, name, nil)
			switch {
			case err == nil:
				return fmt.Errorf("upperdir has %s with %s: it cannot become a disk; commit the container to an image first: %w",
					strings.TrimPrefix(path, dir), name, errdefs.ErrNotImplemented)
			case !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.ENOTSUP):
				return &os.PathError{Op: "getxattr", Path: path, Err: err}
			}
		}
		return nil
	})
}
