package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/continuity/pkg/ext4"
	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/internal/durable"
)

const mkfsPrefix = "X-containerd.mkfs."

// mkfsSize reads the size of a file that is to be formatted; 0 if the mount says none.
func mkfsSize(e entry) (int64, error) {
	if !slices.Contains(e.transforms, "mkfs") {
		return 0, nil
	}
	var size config.Size
	for _, o := range e.options {
		key, value, _ := strings.Cut(strings.TrimPrefix(o, mkfsPrefix), "=")
		if !strings.HasPrefix(o, mkfsPrefix) {
			continue
		}
		switch key {
		case "fs":
			if value != "ext4" {
				return 0, fmt.Errorf("option %s: only ext4 is made: %w", o, errdefs.ErrNotImplemented)
			}
		case "size":
			var err error
			if size, err = config.ParseSize(value); err != nil {
				return 0, fmt.Errorf("option %s: %w", o, err)
			}
		case "uuid": // names the file system for people; the guest finds it by its serial
		default:
			return 0, fmt.Errorf("option %s is not known: %w", o, errdefs.ErrNotImplemented)
		}
	}
	if size == 0 {
		return 0, invalid("mount of %s is to be formatted and has no option %ssize", e.source, mkfsPrefix)
	}
	return int64(size), nil
}

// makeWritable makes the writable disk if it is not there and returns its size. The
// file appears complete or not at all. An empty file counts as not there: some clients
// make it before they hand it over.
func makeWritable(path string, size int64) (int64, error) {
	info, err := os.Stat(path)
	if err == nil && info.Size() > 0 {
		if !info.Mode().IsRegular() {
			return 0, invalid("writable disk %s is not a file", path)
		}
		return info.Size(), nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("make writable disk: %w", err)
	}
	dir, err := os.MkdirTemp(filepath.Dir(path), ".godwit-rw-")
	if err != nil {
		return 0, fmt.Errorf("make writable disk: %w", err)
	}
	defer os.RemoveAll(dir)
	tmp := filepath.Join(dir, "disk")
	// upper becomes the root of the container.
	err = ext4.Create(tmp, size, ext4.WithDir("/upper", 0o755, 0, 0), ext4.WithDir("/work", 0o755, 0, 0))
	if err != nil {
		return 0, fmt.Errorf("make writable disk %s of %d bytes: %w", path, size, err)
	}
	if err := os.Chmod(tmp, 0o600); err != nil {
		return 0, fmt.Errorf("make writable disk: %w", err)
	}
	if err := commit(tmp, path); err != nil {
		return 0, fmt.Errorf("make writable disk: %w", err)
	}
	return size, nil
}

// commit makes tmp durable under its name.
func commit(tmp, path string) error {
	f, err := os.Open(tmp)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	return durable.SyncDir(filepath.Dir(path))
}
