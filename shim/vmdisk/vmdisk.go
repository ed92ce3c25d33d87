// Package vmdisk makes the files of a VM that boots the system on a disk: the disk, which
// is the image's as a raw copy of the VM's own, and what boots it. The shim calls it in
// Create. What the image holds is foreign input; no path of it leads out of the image.
package vmdisk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/containerd/containerd/api/types"
	"github.com/containerd/errdefs"

	"godwit.dev/godwit/internal/durable"
	"godwit.dev/godwit/shim/rootfs"
)

// Request says what to make.
type Request struct {
	Mounts []*types.Mount // of the image
	Path   string         // of the disk in the image; empty: the only one in /disk
	Size   int64          // that the guest sees; 0: as the disk says
	Most   int64          // that a disk may have
	Kernel string         // in the image; empty: none
	Initrd string
	// Firmware and NVRAM are files of this node; empty: none. The VM gets a copy of each.
	Firmware string
	NVRAM    string
	Dir      string // for the files of this VM alone
	Kept     rootfs.Kept
}

// Files of one VM. Those without a path are not there.
type Files struct {
	Path                     string // of the disk in its image
	Disk, NVRAM              File   // that the guest writes
	Firmware, Kernel, Initrd File   // that it does not
}

// File is one of them.
type File struct {
	Path   string
	Size   int64
	Digest string // of those that the guest does not write
}

// names of the files that only this VM has.
const (
	firmwareName = "firmware.fd"
	kernelName   = "kernel"
	initrdName   = "initrd"
)

// Bounds of what is copied in addition to the disk.
const (
	maxFirmware = 64 << 20
	maxKernel   = 256 << 20
	maxInitrd   = 2 << 30
)

// Prepare makes the files, or finds the disk of an earlier task of the same container.
// On an error nothing is left that was not there before.
func Prepare(ctx context.Context, cache *rootfs.Cache, r Request) (_ *Files, err error) {
	dir, err := rootfs.WritableDir(r.Mounts, r.Dir, r.Kept)
	if err != nil {
		return nil, fmt.Errorf("prepare VM disk: %w", err)
	}
	m := maker{request: r, cache: cache, files: new(Files)}
	m.files.Disk.Path = filepath.Join(dir, rootfs.DiskName)
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("prepare VM disk: %w", classifyFull(err)), m.undo())
		}
	}()
	if err := m.firmware(ctx, dir); err != nil {
		return nil, err
	}
	if err := cache.Show(ctx, r.Mounts, func(t rootfs.Tree) error { return m.fromImage(ctx, t) }); err != nil {
		return nil, err
	}
	return m.files, nil
}

// maker is one Prepare.
type maker struct {
	request Request
	cache   *rootfs.Cache
	files   *Files
	made    []string
}

func (m *maker) undo() error {
	var errs []error
	for _, name := range m.made {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// classifyFull gives a full disk of the host its class.
func classifyFull(err error) error {
	if durable.IsFull(err) {
		return fmt.Errorf("make room on the host's disk: %w: %w", err, errdefs.ErrResourceExhausted)
	}
	return err
}

// firmware copies the node's, so that an upgrade of its package changes nothing for a VM
// that is there.
func (m *maker) firmware(ctx context.Context, dir string) (err error) {
	r := m.request
	for _, f := range []struct {
		from string
		to   *File
		path string
	}{
		{r.Firmware, &m.files.Firmware, filepath.Join(r.Dir, firmwareName)},
		{r.NVRAM, &m.files.NVRAM, filepath.Join(dir, rootfs.NVRAMName)},
	} {
		if f.from == "" {
			continue
		}
		if f.to == &m.files.NVRAM && m.reuse(f.to, f.path) {
			continue
		}
		source, err := os.Open(f.from)
		if err != nil {
			return fmt.Errorf("firmware: %w: %w", err, errdefs.ErrFailedPrecondition)
		}
		err = m.copySmall(ctx, source, f.to, f.path, maxFirmware)
		if err = errors.Join(err, source.Close()); err != nil {
			return err
		}
	}
	return nil
}

// reuse takes a file that an earlier task of the container has left.
func (m *maker) reuse(to *File, name string) bool {
	info, err := os.Lstat(name)
	if err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
		return false
	}
	to.Path, to.Size = name, info.Size()
	return true
}

// fromImage takes from the image what this VM needs of it.
func (m *maker) fromImage(ctx context.Context, t rootfs.Tree) error {
	root, err := os.OpenRoot(t.Dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, f := range []struct {
		inside, name string
		to           *File
		most         int64
	}{
		{m.request.Kernel, kernelName, &m.files.Kernel, maxKernel},
		{m.request.Initrd, initrdName, &m.files.Initrd, maxInitrd},
	} {
		if f.inside == "" {
			continue
		}
		source, _, err := openFile(root, f.inside)
		if err != nil {
			return err
		}
		err = m.copySmall(ctx, source, f.to, filepath.Join(m.request.Dir, f.name), f.most)
		if err = errors.Join(err, source.Close()); err != nil {
			return err
		}
	}
	return m.disk(ctx, t, root)
}

// openFile opens a regular file of the image.
func openFile(root *os.Root, name string) (*os.File, fs.FileInfo, error) {
	refuse := func(class error, why string) error { return fmt.Errorf("%s of the image: %s: %w", name, why, class) }
	inside := strings.TrimPrefix(name, "/")
	info, err := root.Stat(inside)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil, refuse(errdefs.ErrNotFound, "there is no such file")
	case err != nil: // a link that leads out of the image, too
		return nil, nil, refuse(errdefs.ErrInvalidArgument, err.Error())
	case !info.Mode().IsRegular():
		return nil, nil, refuse(errdefs.ErrInvalidArgument, fmt.Sprintf("it is not a file but %v", info.Mode()))
	case info.Size() == 0:
		return nil, nil, refuse(errdefs.ErrInvalidArgument, "it is empty")
	}
	f, err := root.OpenFile(inside, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	if opened, err := f.Stat(); err != nil || !opened.Mode().IsRegular() {
		f.Close()
		return nil, nil, refuse(errdefs.ErrAborted, "it changed while it was read")
	}
	return f, info, nil
}

// Suffixes of disks below /disk.
var suffixes = []string{".raw", ".qcow2", ".img"}

// find answers the path of the only disk below /disk.
func find(root *os.Root) (string, error) {
	const remedy = "name it with annotation godwit.dev/disk"
	dir, err := fs.ReadDir(root.FS(), "disk")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("/disk of the image: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	var all []string
	for _, e := range dir {
		if slices.Contains(suffixes, path.Ext(e.Name())) {
			all = append(all, path.Join("/disk", e.Name()))
		}
	}
	switch len(all) {
	case 0:
		return "", fmt.Errorf("the image carries no disk: there is no /disk/*.raw, *.qcow2 or *.img; %s: %w", remedy,
			errdefs.ErrNotFound)
	case 1:
		return all[0], nil
	}
	return "", fmt.Errorf("the image carries %d disks, %s: %s: %w", len(all), strings.Join(all, ", "), remedy,
		errdefs.ErrInvalidArgument)
}
