package rootfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/internal/osthread"
)

// inPrivateNamespace runs fn on a thread with a mount namespace of its own. No other thread sees
// what fn mounts, and it is gone with the thread, also after a crash. fn must stay on its
// goroutine for whatever looks at these mounts.
func inPrivateNamespace(fn func() error) error {
	return osthread.Do(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("make mount namespace: %w", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("make mount namespace private: %w", err)
		}
		return fn()
	})
}

// useOverlay shows use the merged tree of dirs, read-only. The working directory of
// the thread is its own, so that a long chain fits the kernel's one page of options.
func useOverlay(ctx context.Context, dirs []string, scratch string, use func(string) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	// An overlay without upperdir needs two lowers; an empty one below changes nothing.
	bottom, target := filepath.Join(scratch, "bottom"), filepath.Join(scratch, "tree")
	for _, d := range []string{bottom, target} {
		if err := os.Mkdir(d, 0o700); err != nil {
			return err
		}
	}
	base := commonDir(append([]string{bottom}, dirs...))
	var names []string
	for _, d := range append(append([]string(nil), dirs...), bottom) {
		rel, err := filepath.Rel(base, d)
		if err != nil {
			return err
		}
		names = append(names, escape(rel))
	}
	options := "lowerdir=" + strings.Join(names, ":") + ",index=off,xino=off"
	if len(options) >= os.Getpagesize() {
		return fmt.Errorf("mount overlay of %d directories: its options do not fit a page", len(dirs))
	}
	if err := unix.Chdir(base); err != nil {
		return &os.PathError{Op: "chdir", Path: base, Err: err}
	}
	if err := unix.Mount("overlay", target, "overlay", unix.MS_RDONLY, options); err != nil {
		return fmt.Errorf("mount overlay of %s: %w", strings.Join(dirs, ":"), err)
	}
	return errors.Join(use(target), unix.Unmount(target, 0))
}

// escape guards what overlayfs reads as its own syntax.
func escape(path string) string {
	return strings.NewReplacer(`\`, `\\`, ":", `\:`, ",", `\,`).Replace(path)
}

// commonDir is the longest directory that holds all paths.
func commonDir(paths []string) string {
	base := filepath.Dir(paths[0])
	for _, p := range paths[1:] {
		for base != "/" && !strings.HasPrefix(p, base+"/") {
			base = filepath.Dir(base)
		}
	}
	return base
}

// useImages mounts every image and shows use the overlay of them, topmost first.
func useImages(ctx context.Context, images []image, scratch string, use func(string) error) (err error) {
	var dirs []string
	defer func() {
		for _, d := range dirs {
			err = errors.Join(err, unix.Unmount(d, 0))
		}
	}()
	for i, img := range images {
		dir := filepath.Join(scratch, fmt.Sprintf("image%d", i))
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		if err := mountImage(img, dir); err != nil {
			return err
		}
		dirs = append(dirs, dir)
	}
	return useOverlay(ctx, dirs, scratch, use)
}

// mountImage mounts a file read-only through a loop device that goes with the mount.
func mountImage(img image, dir string) error {
	loop, err := mount.SetupLoop(img.path, mount.LoopParams{Readonly: true, Autoclear: true})
	if err != nil {
		return fmt.Errorf("attach %s: %w", img.path, err)
	}
	defer loop.Close()
	options := ""
	if img.fsType == "ext4" {
		options = "noload"
	}
	if err := unix.Mount(loop.Name(), dir, img.fsType, unix.MS_RDONLY, options); err != nil {
		return fmt.Errorf("mount %s image %s: %w", img.fsType, img.path, err)
	}
	return nil
}
