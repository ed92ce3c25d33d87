package vmdisk

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/internal/durable"
	"godwit.dev/godwit/shim/rootfs"
	"godwit.dev/godwit/shim/vmdisk/qcow2"
)

// pageSize is what the size of a disk is rounded up to: snapshots are made of pages.
const pageSize = 4096

// disk makes the VM's own raw disk, unless it has one.
func (m *maker) disk(ctx context.Context, t rootfs.Tree, root *os.Root) (err error) {
	r := m.request
	name := r.Path
	if name == "" {
		if name, err = find(root); err != nil {
			return err
		}
	}
	m.files.Path = name
	if m.reuse(&m.files.Disk, m.files.Disk.Path) {
		return nil
	}
	source, info, err := openFile(root, name)
	if err != nil {
		return err
	}
	defer source.Close()
	packed, err := isQcow2(source, name)
	if err != nil {
		return err
	}
	if packed {
		base, err := m.rawDisk(ctx, t, source, name, info.Size())
		if err != nil {
			return fmt.Errorf("%s of the image: %w", name, err)
		}
		defer base.Close()
		return m.copyDisk(ctx, base, base)
	}
	return m.copyDisk(ctx, source, lowerFile(t, name, info))
}

// isQcow2 believes a name that says what the file is, and looks into one that does not. A
// disk that a guest has written is never asked: its first bytes are the guest's.
func isQcow2(f *os.File, name string) (bool, error) {
	head := make([]byte, 4)
	if _, err := f.ReadAt(head, 0); err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	is := qcow2.Is(head)
	switch ext := path.Ext(name); {
	case ext == ".qcow2" && !is:
		return false, fmt.Errorf("%s of the image: it is no qcow2 file: %w", name, errdefs.ErrInvalidArgument)
	case ext == ".raw":
		return false, nil
	}
	return is, nil
}

// lowerFile finds the file that an overlay shows in the directory where it lies, which can be
// cloned; nil where there is none.
func lowerFile(t rootfs.Tree, name string, info fs.FileInfo) *os.File {
	for _, dir := range t.Below {
		root, err := os.OpenRoot(dir)
		if err != nil {
			continue
		}
		f, there, err := openFile(root, name)
		root.Close()
		if err != nil {
			continue
		}
		if there.Size() == info.Size() && there.ModTime().Equal(info.ModTime()) {
			return f
		}
		f.Close()
		return nil
	}
	return nil
}

// rawDisk answers the raw disk that is in a qcow2 file. It is made once on the node.
func (m *maker) rawDisk(ctx context.Context, t rootfs.Tree, source *os.File, name string, size int64) (*os.File,
	error) {
	image, err := qcow2.Open(source, size, m.request.Most)
	if err != nil {
		return nil, err
	}
	key := t.InnerKey(name, size)
	if key == "" { // a root file system that may change: what counts is the content
		h := sha256.New()
		if _, err := io.Copy(h, io.NewSectionReader(source, 0, size)); err != nil {
			return nil, err
		}
		key = hex.EncodeToString(h.Sum(nil))
	}
	return m.cache.Base(ctx, key, func(f *os.File) error {
		need, err := image.Allocated(ctx)
		if err != nil {
			return err
		}
		if err := room(f, need); err != nil {
			return err
		}
		if err := f.Truncate(image.Size); err != nil {
			return err
		}
		return image.Each(ctx, func(at int64, data []byte) error { return writeSparse(f, at, data) })
	})
}

// room refuses what cannot fit before the host's disk is full.
func room(f *os.File, need int64) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return err
	}
	if free := int64(st.Bavail) * st.Bsize; need > free {
		return fmt.Errorf("it holds up to %d MiB, the host's disk has %d MiB left: %w", need>>20, free>>20,
			errdefs.ErrResourceExhausted)
	}
	return nil
}

// copyDisk gives the VM its disk: cloned from the file clone, where that is one and the
// file system can, else copied from source.
func (m *maker) copyDisk(ctx context.Context, source, clone *os.File) error {
	info, err := source.Stat()
	if err != nil {
		return err
	}
	if clone != nil && clone != source {
		defer clone.Close()
	}
	size := (max(info.Size(), m.request.Size) + pageSize - 1) / pageSize * pageSize
	if size > m.request.Most {
		return fmt.Errorf("a disk of %d bytes, this node allows %d (vm.max_disk): %w", size, m.request.Most,
			errdefs.ErrInvalidArgument)
	}
	return m.make(&m.files.Disk, m.files.Disk.Path, func(f *os.File) error {
		cloned := clone != nil && unix.IoctlFileClone(int(f.Fd()), int(clone.Fd())) == nil
		if !cloned {
			if err := copySparse(ctx, f, source, info.Size()); err != nil {
				return err
			}
		}
		return f.Truncate(size)
	})
}

// make lets fill write a new file, which has its name when it is complete and durable.
func (m *maker) make(to *File, name string, fill func(*os.File) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(name), ".godwit-disk-")
	if err != nil {
		return err
	}
	defer func() {
		if e := errors.Join(f.Close(), os.Remove(f.Name())); err != nil {
			err = errors.Join(err, e)
		}
	}()
	if err := fill(f); err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Link(f.Name(), name); err != nil {
		return err
	}
	m.made = append(m.made, name)
	to.Path, to.Size = name, info.Size()
	return durable.SyncDir(filepath.Dir(name))
}

// copySmall copies a small file and takes its digest.
func (m *maker) copySmall(ctx context.Context, source *os.File, to *File, name string, most int64) error {
	info, err := source.Stat()
	if err != nil {
		return err
	}
	if info.Size() > most {
		return fmt.Errorf("%s has %d bytes, the most is %d: %w", source.Name(), info.Size(), most, errdefs.ErrInvalidArgument)
	}
	h := sha256.New()
	err = m.make(to, name, func(f *os.File) error {
		_, err := io.Copy(io.MultiWriter(f, h), reader{ctx, io.NewSectionReader(source, 0, info.Size())})
		// The VMM is a user of its own, and reads it; no other user reaches the directory.
		return errors.Join(err, f.Chmod(0o644))
	})
	to.Digest = "sha256:" + hex.EncodeToString(h.Sum(nil))
	return err
}

// reader ends with its context.
type reader struct {
	ctx  context.Context
	from io.Reader
}

func (r reader) Read(buf []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.from.Read(buf)
}
