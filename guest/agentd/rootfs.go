package agentd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	agentv1 "godwit.dev/godwit/api/agent/lean"
	"godwit.dev/godwit/guest/stage"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// rootfs is a container's root file system and the mounts below it.
type rootfs struct {
	dir    string
	path   string // of the result, once it is mounted
	users  *users // of the container
	mounts []string
}

// mount joins the disks. find finds the device of a serial number. scratch is the directory of
// who has no writable disk; empty: a tmpfs.
func (f *rootfs) mount(r *agentv1.SetupRequest, scratch string, find func(serial string) (string, error)) error {
	var lowers []string
	for i, d := range r.Layers {
		target, err := f.disk(fmt.Sprintf("layer%d", i), d, find)
		if err != nil {
			return err
		}
		if r.MapLayers {
			err = f.mapLayer(target)
		}
		if err != nil {
			return fmt.Errorf("disk %s: %w", d.Serial, err)
		}
		lowers = append(lowers, target)
	}
	rw := scratch
	var err error
	switch {
	case r.Writable != nil:
		rw, err = f.disk("rw", r.Writable, find)
	case scratch == "":
		rw, err = f.make("rw", "tmpfs", "tmpfs", 0, "mode=755")
	}
	if err != nil {
		return err
	}
	if err := f.makeUpper(rw); err != nil {
		return err
	}
	f.path = filepath.Join(rw, "upper")
	if len(lowers) == 0 {
		return nil
	}
	// The option string of mount(2) is one page, and these names are short.
	f.path, err = f.make("rootfs", "overlay", "overlay", 0,
		"lowerdir="+strings.Join(lowers, ":")+",upperdir="+rw+"/upper,workdir="+rw+"/work,index=off,xino=off")
	return err
}

// makeUpper makes what an overlay writes to. The root directory of a container is its root's.
func (f *rootfs) makeUpper(rw string) error {
	upper := filepath.Join(rw, "upper")
	for _, dir := range []string{upper, filepath.Join(rw, "work")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make %s: %w", filepath.Base(dir), err)
		}
	}
	if f.users == nil {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Stat(upper, &st); err != nil {
		return fmt.Errorf("stat upper: %w", err)
	}
	if st.Uid != 0 || st.Gid != 0 { // the container has changed it
		return nil
	}
	uid, gid := f.users.Root()
	if err := os.Chown(upper, uid, gid); err != nil {
		return fmt.Errorf("own upper: %w", err)
	}
	return nil
}

// mapLayer mounts a layer over itself. Its files have the ids of the container there.
func (f *rootfs) mapLayer(target string) error {
	if f.users == nil {
		return fmt.Errorf("map layers: the container has no user namespace: %w", errdefs.ErrInvalidArgument)
	}
	if err := stage.MapMount(target, target, int(f.users.file.Fd())); err != nil {
		return err
	}
	f.mounts = append(f.mounts, target)
	return nil
}

// disk mounts the file system of a disk.
func (f *rootfs) disk(name string, d *agentv1.Disk, find func(serial string) (string, error)) (string, error) {
	device, err := find(d.Serial)
	if err != nil {
		return "", err
	}
	switch d.Type {
	case "erofs", "ext4", "squashfs", "xfs":
	default:
		return "", fmt.Errorf("disk %s: file system %q in a guest: %w", d.Serial, d.Type, errdefs.ErrNotImplemented)
	}
	var flags uintptr
	if d.ReadOnly || d.Type == "erofs" {
		flags = unix.MS_RDONLY
	}
	return f.make(name, device, d.Type, flags, "")
}

func (f *rootfs) make(name, source, kind string, flags uintptr, data string) (string, error) {
	target := filepath.Join(f.dir, name)
	if err := os.MkdirAll(target, 0o755); err != nil {
		return "", fmt.Errorf("make mount point: %w", err)
	}
	if err := unix.Mount(source, target, kind, flags, data); err != nil {
		return "", fmt.Errorf("mount %s %s on %s: %w", kind, source, target, err)
	}
	f.mounts = append(f.mounts, target)
	return target, nil
}

// unmount undoes mount, in reverse. What it could not unmount it tries again.
func (f *rootfs) unmount() error {
	var left []string
	var errs []error
	for i := len(f.mounts) - 1; i >= 0; i-- {
		if err := unix.Unmount(f.mounts[i], unix.MNT_DETACH); err != nil && err != unix.EINVAL { // it is no mount
			errs = append(errs, fmt.Errorf("unmount %s: %w", f.mounts[i], err))
			left = append([]string{f.mounts[i]}, left...)
		}
	}
	f.mounts = left
	return errors.Join(errs...)
}

// findDisk returns the device of a serial number.
func findDisk(serial string) (string, error) {
	const block = "/sys/block"
	disks, err := os.ReadDir(block)
	if err != nil {
		return "", fmt.Errorf("look for disk with serial %q: %w", serial, err)
	}
	for _, d := range disks {
		data, err := os.ReadFile(filepath.Join(block, d.Name(), "serial"))
		if err == nil && strings.TrimSpace(string(data)) == serial && serial != "" {
			return "/dev/" + d.Name(), nil
		}
	}
	return "", fmt.Errorf("disk with serial %q: %w", serial, errdefs.ErrNotFound)
}

// diskFinder finds the disks of a VM's start. Those of a copy may have been plugged in after it was restored.
func (s *Service) diskFinder(ctx context.Context) func(serial string) (string, error) {
	if !s.held {
		return findDisk
	}
	return func(serial string) (string, error) { return awaitDisk(ctx, serial) }
}

// awaitDisk is findDisk for a disk that may have been plugged in just now. The kernel shows its
// serial number a moment before the device can be opened.
func awaitDisk(ctx context.Context, serial string) (device string, err error) {
	err = awaitPlugged(ctx, func() (missing, failed error) {
		if device, missing = findDisk(serial); missing != nil && !errdefs.IsNotFound(missing) {
			return nil, missing
		}
		if missing != nil {
			return missing, nil
		}
		f, err := os.Open(device)
		if err != nil {
			return fmt.Errorf("open disk with serial %q: %w: %w", serial, err, errdefs.ErrUnavailable), nil
		}
		return nil, f.Close()
	})
	return device, err
}

// awaitPlugged returns once look finds a device that may have been plugged in just now. What is missing may come yet;
// what has failed ends the wait.
func awaitPlugged(ctx context.Context, look func() (missing, failed error)) error {
	ctx, cancel := context.WithTimeout(ctx, diskWait)
	defer cancel()
	var missing error
	err := poll(ctx, func() (bool, error) {
		var failed error
		missing, failed = look()
		return missing == nil && failed == nil, failed
	})
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("after %v: %w", diskWait, missing)
	}
	return err
}

// released returns once nothing uses a disk any more: who has mounted it holds it for itself.
func released(ctx context.Context, serial string) error {
	err := poll(ctx, func() (bool, error) {
		device, err := findDisk(serial)
		if errdefs.IsNotFound(err) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		fd, err := unix.Open(device, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
		switch err {
		case nil:
			return true, unix.Close(fd)
		case unix.EBUSY, unix.EINTR:
			return false, nil
		case unix.ENOENT, unix.ENXIO, unix.ENODEV: // it is being unplugged
			return true, nil
		}
		return false, fmt.Errorf("open %s: %w", device, err)
	})
	if err != nil {
		return fmt.Errorf("release disk with serial %q: it is still in use: %w: %w", serial, err, errdefs.ErrUnavailable)
	}
	return nil
}
